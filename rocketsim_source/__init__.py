"""RocketSim for Spark.  Importing this is cheap: Spark does it whenever it looks for data sources."""

from rocketsim_source.data_source import RocketSimDataSource

__all__ = ["RocketSimDataSource"]
