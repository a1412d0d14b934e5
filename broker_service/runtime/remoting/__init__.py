"""The server side of RocketMQ's remoting protocol, for brokers and name servers: connections, requests and answers.

`server.py` has the connections and their limits, `memory_budget.py` the memory that requests may use, and `calls.py`
passes each request to its handler.  The handlers are in the packages `namesrv`, `admin` and `wire/remoting`.
"""
