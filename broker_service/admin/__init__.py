"""Serves operators' commands, and a broker's status and metrics."""
