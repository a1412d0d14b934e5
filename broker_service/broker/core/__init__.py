"""The state of one broker, and what concerns all that works on it."""
