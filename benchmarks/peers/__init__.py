"""What RocketSim is measured against: Kafka and RocketMQ from Maven by coordinates, two Python clients from pip.

A peer that cannot be had is a `Missing` with its reason, never a figure.
"""
