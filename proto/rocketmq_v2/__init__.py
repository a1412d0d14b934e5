"""The gRPC protocol of RocketMQ 5's clients, with Apache RocketMQ's own `.proto` files and the code made from them.

The protobuf package is `apache.rocketmq.v2`, like that of the official Python client.  Both register the same names, so
this package and the official client cannot be imported in one process.
"""
