"""Limits of sizes and times on which clients and brokers must agree.  Pure."""

MAX_QUEUE_NUMS = 65_536  # the most queues of a topic on one broker
MAX_BODY_BYTES = 128 << 20  # the longest body of a message, compressed or not; the largest maxMessageSize
FRAME_BYTES = 8 << 20  # the largest size that may be configured for a frame of several messages
# The largest gRPC message has either a frame or one record with the longest body, and some other fields.
MAX_RPC_BYTES = MAX_BODY_BYTES + FRAME_BYTES
MAX_INVISIBLE_MS = 12 * 3600 * 1000  # the longest time that a consumer may keep a message without acknowledging it
