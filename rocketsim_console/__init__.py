"""`rocketsim console`: pages that show a cluster in a browser.  Built on `rocketsim_client` only.

`watch.py` asks all brokers once a second, for all viewers together, and keeps the last minutes in memory.  `views.py`
and `messages.py` ask for what one page shows, and only while somebody looks at it (`feeds.py`).  `app.py` serves both
as JSON beside `static/`, where small modules of JavaScript make pages of them.  What a broker, a producer or a user has
named never becomes HTML: the pages set text only.
"""
