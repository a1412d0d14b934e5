"""Delivers delayed messages: those with a delay level (`schedule.py`), and those with a delivery time (timers)."""
