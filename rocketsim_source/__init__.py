"""RocketSim for Spark.  The import is cheap, because Spark imports this module whenever it looks for data sources."""

try:
    from rocketsim_source.data_source import RocketSimDataSource
except ModuleNotFoundError:
    from rocketsim_proto.extras import need

    need("spark")  # if pyspark is missing, raises an error that names the extra to install
    raise

__all__ = ["RocketSimDataSource"]
