"""A store directory read without its broker: what `rocketsim store verify` and `store dump` do."""
