"""Views: the tables of `rocketsim admin`, for Spark.

`columns` has the columns of each view, `rows` asks the brokers, and `view_reader` is called by Spark.
"""
