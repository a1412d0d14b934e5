"""Views: what `rocketsim admin` shows, as tables for Spark.

`columns` says which columns each view has, `rows` asks the brokers, and `view_reader` is what Spark runs.
"""
