"""Rows out: Arrow batches in, acknowledged messages out."""
