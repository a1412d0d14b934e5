"""The commands `rocketsim store verify` and `rocketsim store dump` read a store directory without its broker."""
