"""RocketMQ handover: takes over deliveries that a RocketMQ had under way, and leaves ours to a RocketMQ."""
