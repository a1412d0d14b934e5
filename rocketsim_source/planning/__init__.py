"""The decisions of the driver: which queues exist, how far a batch goes, and how it is cut into tasks."""
