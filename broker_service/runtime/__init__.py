"""Code that both server processes use: ports, TLS, deadlines, tasks, clocks, metrics and errors in answers."""
