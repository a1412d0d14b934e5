"""Operators' commands, and the status and metrics of a broker."""
