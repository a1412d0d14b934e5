"""Transactions: half messages until their producers commit or roll back, and the checks that ask them."""
