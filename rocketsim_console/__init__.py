"""`rocketsim console`: pages that show a cluster in a browser.  This package uses `rocketsim_client` only.

`watch.py` asks all brokers once a second, for all viewers together, and keeps the last minutes in memory.  `views.py`
and `messages.py` ask for the data of one page, and only while a viewer has it open (`feeds.py`).  `app.py` serves all
this data as JSON, from which the JavaScript modules in `static/` make pages.  Names from brokers, producers or users
never become HTML, because the pages set only text.

The console only reads, unless it is given actions (`actions.py`).  `changes.py` runs the actions for a browser that has
a session (`sessions.py`), with the access keys of the browser's user.
"""

from rocketsim_proto.extras import need

need("console")
