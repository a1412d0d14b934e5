"""The state of one broker, which all other parts of the broker use."""
