"""RocketSim's own calls: gRPC, and plain sockets beside it; generated messages <-> the client's values."""
