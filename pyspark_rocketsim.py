"""Lets Spark find `format("rocketsim")` with no register call: it looks for `DefaultSource` in modules `pyspark_*`.

One such module that fails to import disables all of them, so this one imports nothing but the class's light module.
"""

from rocketsim_source import RocketSimDataSource as DefaultSource

__all__ = ["DefaultSource"]
