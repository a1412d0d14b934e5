"""`rocketsim demo`: runs the whole system on live data, with a producer, a Spark query and a screen."""
