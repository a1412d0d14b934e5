"""Serves transactions: stores half messages, commits them or rolls them back, and asks producers about transactions
that stay open.
"""
