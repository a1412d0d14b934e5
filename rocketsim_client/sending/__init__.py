"""Brings a message to its acknowledgement: outbox (lanes, threads) -> sender (batches) -> attempts (retries)."""
