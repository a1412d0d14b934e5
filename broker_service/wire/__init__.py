"""The calls of clients, with one folder for each protocol.

A protocol converts its requests to calls of the packages below (`broker/put.py`, `broker/reads`, `pop`,
`transactions`), and the results of these to answers.  The folders do not import each other.  They share `clients.py`,
which knows the connected clients, and asks producers about transactions.
"""
