"""The transport over RocketMQ's remoting protocol, for the client and Spark on an unmodified Apache RocketMQ
cluster."""
