"""Node: the parts of a broker's process, which are put together, started in order and stopped in reverse."""
