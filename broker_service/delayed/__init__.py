"""Delivers delayed messages: those with a delay level (schedule topic) and those with a delivery time (timers)."""
