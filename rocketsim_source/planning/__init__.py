"""What the driver decides: which queues exist, how far a batch goes, and how it is cut into tasks."""
