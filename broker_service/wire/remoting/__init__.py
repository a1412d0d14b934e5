"""RocketMQ's remoting protocol: the calls of producers and consumers of RocketMQ 4, and of 5's over the same protocol.

`sends.py`, `pulls.py` and `offsets.py` turn requests into the calls of the put path, the pull path and the commits that
serve all protocols; `members.py` knows which clients are connected, and of which groups.  Operators' requests are
answered in `admin/remoting.py`; frames and connections are those of `runtime/remoting`.
"""
