"""Exchanges open deliveries with RocketMQ: takes over those of a RocketMQ that has used this store, and writes this
broker's own ones for a RocketMQ that opens it.
"""
