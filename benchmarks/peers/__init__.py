"""The peers of RocketSim: Kafka and RocketMQ from Maven by coordinates, two Python clients from pip.

A peer that is not available is a `Missing` with its reason, never a figure.
"""
