"""RocketMQ's remoting protocol, as a broker and a name server take it: connections, requests and answers.

`server.py` has the connections and their bounds, `room.py` the memory that requests may take, and `calls.py` passes a
request to what answers it.  What a code means is in the rooms that answer: `namesrv`, `admin` and `wire/remoting`.
"""
