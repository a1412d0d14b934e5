"""Holds a broker's state (`core`, `metadata`), appends sends (`put.py`, `frame.py`) and serves reads (`reads`)."""
