"""Operators' commands, a broker's status, its metrics."""
