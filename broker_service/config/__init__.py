"""The configuration of a server process: the keys of its file, with their types and checks."""
