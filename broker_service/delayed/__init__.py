"""Delayed messages: the schedule topic, and their delivery when their time has come."""
