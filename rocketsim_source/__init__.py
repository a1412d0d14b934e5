"""RocketSim for Spark.  The import is cheap, because Spark imports this module whenever it looks for data sources."""

from rocketsim_source.data_source import RocketSimDataSource

__all__ = ["RocketSimDataSource"]
