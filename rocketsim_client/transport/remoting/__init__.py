"""RocketMQ's remoting protocol as a transport: our client and Spark on an unmodified Apache RocketMQ cluster."""
