"""The peers of RocketSim: Kafka and RocketMQ from Maven, and two Python clients from pip.

A peer that is not available is a `Missing` with the reason, and never a figure.
"""
