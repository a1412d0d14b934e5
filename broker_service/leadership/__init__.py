"""Who is the master of a broker name: what brokers tell each other, what follows from it, promotion."""
