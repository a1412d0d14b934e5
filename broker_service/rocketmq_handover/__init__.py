"""What a RocketMQ had under way when its store is opened here, and what is left to a RocketMQ that opens ours."""
