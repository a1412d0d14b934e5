"""`rocketsim store verify` and `rocketsim store dump`, which read a store directory without its broker."""
