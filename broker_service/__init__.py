"""What a server process is made of: a broker or a name server."""
