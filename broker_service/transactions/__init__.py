"""Transactions: half messages, their commit and rollback, and the questions to producers that do neither."""
