"""Sends a producer's messages: outbox (lanes, threads) -> sender (batches) -> attempts (retries)."""
