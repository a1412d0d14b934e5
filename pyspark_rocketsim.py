"""Lets Spark find `format("rocketsim")` without a register call, because Spark looks for a `DefaultSource` in every
module `pyspark_*`.

If one of these modules fails to import, Spark ignores all of them, so this module imports nothing but the small module
of the class.
"""

from rocketsim_source import RocketSimDataSource as DefaultSource

__all__ = ["DefaultSource"]
