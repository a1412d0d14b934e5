"""Views: the tables of `rocketsim admin` as Spark tables.

`columns.py` has the columns of each view, `rows.py` asks the brokers, and Spark calls `view_reader.py`.
"""
