"""RocketSim for Spark.  The import is cheap, because Spark imports this module whenever it looks for data sources."""

from rocketsim_proto.extras import need

need("spark")

from rocketsim_source.data_source import RocketSimDataSource  # noqa: E402

__all__ = ["RocketSimDataSource"]
