"""Serves transactions: stores half messages, commits and rolls them back, and asks producers that do neither."""
