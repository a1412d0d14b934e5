"""The consumer of a group: what it has received, asks brokers for, settles and renews."""
