"""Leadership: how the brokers of one name find out who is their master, follow it, and promote a slave."""
