"""The calls of clients, one folder for each protocol that they speak."""
