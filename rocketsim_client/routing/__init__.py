"""Chooses the broker to ask, by routes, the members of a broker name, and brokers' suggestions."""
