"""Which broker to ask: routes and how old they are, the members of a broker name, what brokers suggest."""
