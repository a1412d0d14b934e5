"""What the driver decides: which queues there are, how far a batch goes, and how it is cut into tasks."""
