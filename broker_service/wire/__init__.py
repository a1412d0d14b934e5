"""Serves the calls of clients; each folder serves one protocol.

Each protocol converts requests to calls of the packages below (`broker/put.py`, `broker/reads`, `pop`, `transactions`),
and converts their results to answers.  The folders of the protocols do not import each other.  All protocols share
`clients.py`, which knows the connected clients and asks producers how transactions end.
"""
