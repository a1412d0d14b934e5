"""RocketSim's own protocol: its gRPC services, and ranges and sends over plain sockets.

broker_servicer      producers and consumers      ─► broker/put, broker/reads
consumption_servicer consumers of shared messages ─► pop
transaction_servicer producers with transactions  ─► transactions
range_streams        pulls of ranges and sends beside gRPC
send_messages, range_messages: what a call and a stream have in common
"""
