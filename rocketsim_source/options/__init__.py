"""Parses and checks the options of source and sink, before any broker is asked."""
