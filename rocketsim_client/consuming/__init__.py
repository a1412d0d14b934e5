"""The consumer of a group: it receives messages, settles them and renews their deadlines."""
