"""A broker as its clients see it: puts, reads, delayed messages, and who is the master."""
