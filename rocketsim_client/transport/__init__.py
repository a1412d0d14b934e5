"""Calls to one address: the seam (`transport.py`), gRPC channels, generated messages <-> the client's values."""
