"""The sink, which takes Arrow batches and sends their rows as messages until each is acknowledged."""
