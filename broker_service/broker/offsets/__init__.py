"""The offsets that consumer groups have committed."""
