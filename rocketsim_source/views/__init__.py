"""Views: the tables of `rocketsim admin`, for Spark.

`columns.py` has the columns of each view, `rows.py` asks the brokers, and Spark calls `view_reader.py`.
"""
