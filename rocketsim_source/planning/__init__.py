"""The decisions of the driver: which queues exist, how far a batch goes, and how a batch is cut into tasks."""
