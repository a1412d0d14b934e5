"""What every server process here needs, whatever it serves: ports, TLS, deadlines, tasks, errors on the wire."""
