"""The gRPC protocol of RocketMQ 5's clients, with Apache RocketMQ's own `.proto` files and the code made from them.

The protobuf package is `apache.rocketmq.v2`, like that of the official Python client.  This package and the official
client register the same names, so they cannot be imported in one process.
"""
