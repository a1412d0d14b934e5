"""How large things may be: what clients and brokers have to agree on.  Pure."""

MAX_QUEUE_NUMS = 65_536  # of a topic on one broker
MAX_BODY_BYTES = 128 << 20  # of one message, unpacked or not: maxMessageSize may not be more
FRAME_BYTES = 8 << 20  # what a frame of several messages may be configured to have at most
# A message of gRPC's: a record with the longest body, or a frame of several; and what is said about them.
MAX_RPC_BYTES = MAX_BODY_BYTES + FRAME_BYTES
