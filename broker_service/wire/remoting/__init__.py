"""Serves RocketMQ's remoting protocol to producers and consumers of RocketMQ 4, and to those of RocketMQ 5 that still
speak it.

`sends.py`, `pulls.py`, `offsets.py` and `returns.py` convert requests to calls of the put path, the pull path and the
commits, which serve all protocols.  `members.py` keeps the connected clients of each group, `questions.py` asks one of
them for a tool, and `resets.py` tells them new offsets.  `admin/remoting.py` answers operators' requests, and
`runtime/remoting` has the frames and connections.
"""
