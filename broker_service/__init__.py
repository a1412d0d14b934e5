"""The code of the two server processes, the broker and the name server."""
