"""The state of consumption, which follows from the log: deliveries, timers and transactions under way.

Pops, deliveries of timers and transactions change it by appending records.  A slave and a restart read the same
records, so that nothing has to be converted for a promotion.
"""
