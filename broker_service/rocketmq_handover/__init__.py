"""Takes over deliveries that a RocketMQ had under way in this store, and leaves ours to a RocketMQ that opens it."""
