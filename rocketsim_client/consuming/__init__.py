"""The consumer of a group: receives messages, settles them (acknowledges them or gives them back), and renews their
deadlines."""
