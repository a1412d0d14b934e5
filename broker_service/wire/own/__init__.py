"""RocketSim's own protocol: its gRPC services, and ranges and sends over plain sockets."""
