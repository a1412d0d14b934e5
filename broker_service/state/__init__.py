"""Keeps the state of consumption, which follows from the log: deliveries, timers and transactions under way.

Pops, deliveries of timers and transactions change the state of consumption by appending records.  A slave and a restart
read the same records, so a promotion needs no conversion.
"""
