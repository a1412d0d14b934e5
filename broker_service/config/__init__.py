"""What a process is told at its start: the keys of its configuration file, with their types and checks."""
