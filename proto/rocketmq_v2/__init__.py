"""The gRPC protocol of RocketMQ 5's clients: Apache RocketMQ's own `.proto` files and the code made from them.

The protobuf package is `apache.rocketmq.v2`, as theirs: in one process with the official Python client, which registers
the same names, this package cannot be imported.
"""
