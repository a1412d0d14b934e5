"""Broker: its state (`core`, `metadata`), puts (`put.py`, `frame.py`) and reads (`reads`)."""
