"""Takes over the open deliveries of a RocketMQ that has used this store, and writes this broker's open deliveries for a
RocketMQ that will open the store.
"""
