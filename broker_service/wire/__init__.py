"""The calls of clients, one folder for each protocol that they speak.

`clients.py` is of all protocols: who is connected, and who is asked about a transaction.  A protocol turns its calls
into those of the rooms below (`broker/put.py`, `broker/reads`, `pop`, `transactions`) and their results into answers.
The folders do not import each other.
"""
