"""From a message to an acknowledgement: outbox (lanes, threads) -> sender (batches) -> attempts (retries)."""
