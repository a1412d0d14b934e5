"""A broker's process: its parts, put together, started in order and stopped in reverse."""
