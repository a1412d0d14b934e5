"""RocketSim for Spark.  The import is cheap, because Spark imports this module whenever it looks for data sources."""

try:
    from rocketsim_source.data_source import RocketSimDataSource
except ModuleNotFoundError:
    from rocketsim_proto.extras import need

    need("spark")  # raises an error that names the extra, if pyspark is what is missing
    raise

__all__ = ["RocketSimDataSource"]
