"""Delayed messages: those with a delay level, in the schedule topic, and those with a delivery time (timers)."""
