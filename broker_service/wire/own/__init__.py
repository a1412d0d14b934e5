"""RocketSim's own protocol: its gRPC services, and ranges and sends over plain sockets.

broker_servicer      sends, pulls, offsets        ─► broker/put, broker/reads
consumption_servicer pops                         ─► pop
transaction_servicer transactions                 ─► transactions
range_streams        pulls of ranges and sends over plain sockets
send_messages, range_messages: conversions for both gRPC and plain sockets
"""
