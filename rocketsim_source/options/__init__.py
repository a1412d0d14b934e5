"""The options of source and sink, which are checked before any broker is asked."""
