"""RocketSim's own protocol: gRPC, and plain sockets for ranges and sends."""
