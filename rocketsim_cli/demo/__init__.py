"""`rocketsim demo`: the whole system on live data, with its producer, its Spark query and its screen."""
