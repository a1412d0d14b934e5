"""Who is the master of a broker name: what is heard of others, what follows from it, promotion."""
