"""What a broker keeps beside the log: topics, consumer groups, known slaves; and how it travels to slaves."""
