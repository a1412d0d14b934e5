"""How consumers read: who may, what they get, and how they wait for more."""
