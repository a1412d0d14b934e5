"""The name server: it knows the live brokers and their topics, and answers clients with routes."""
