"""Holds the state of one broker, which all its other parts use."""
