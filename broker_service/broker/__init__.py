"""One broker: its state (`core`, `metadata`), the way of a put to the log, and reads."""
