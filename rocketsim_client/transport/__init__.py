"""The calls that the client makes to servers (`transport.py`), over gRPC or RocketMQ's remoting protocol."""
