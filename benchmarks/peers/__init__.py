"""The alternatives with which RocketSim is compared: Kafka and RocketMQ from Maven, and two Python clients from pip.

If a peer is not available, it is replaced by a `Missing` with the reason, and has no figure.
"""
