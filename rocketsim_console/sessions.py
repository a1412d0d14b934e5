"""Sessions of browsers that may change something.  Only a session keeps the access keys of its user, and only in
memory.
"""

import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from rocketsim_client.admin import Admin

MAX_SESSIONS = 100
IDLE_S = 1800.0  # a session ends when it was not used for this long


class NoSession(Exception):
    """The request has no session, or not the token of its session."""


@dataclass(slots=True, eq=False)
class Session:
    """`id` is in a cookie that scripts cannot read.  `token` comes with each request that changes something, in a
    header that other sites cannot send.  `admin` calls the cluster with the keys of `user`.  A session without keys has
    an empty `user`.
    """

    id: str = field(repr=False)
    token: str = field(repr=False)
    admin: Admin
    user: str = ""
    used_s: float = 0.0


class Sessions:
    """`connect(access_key, secret_key)` opens the cluster with a user's keys, or unsigned if both are empty.  `clock`
    returns seconds.  Any thread may call the methods."""

    def __init__(self, connect: Callable[[str, str], Admin], clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # ordered by their last use, the latest at the end

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, id: str) -> Session | None:
        """Returns the session with this id, and keeps it for another IDLE_S."""
        with self._lock:
            self._forget_idle()
            session = self._sessions.get(id)
            if session is not None:
                session.used_s = self._clock()
                self._sessions.move_to_end(id)
            return session

    def open(self, access_key: str = "", secret_key: str = "", *, instead_of: Session | None = None) -> Session:
        """Opens a session.  If a browser's user gives other access keys, the new session replaces `instead_of`.  If
        there are MAX_SESSIONS already, the session ends that was used least recently.
        """
        made = Session(
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(32),
            self._connect(access_key, secret_key),
            access_key,
            self._clock(),
        )
        with self._lock:
            self._forget_idle()
            if instead_of is not None:
                self._end(instead_of.id)
            while len(self._sessions) >= MAX_SESSIONS:
                self._end(next(iter(self._sessions)))
            self._sessions[made.id] = made
        return made

    def check(self, id: str, token: str) -> Session:
        """Returns the session of a request that changes something, or raises NoSession."""
        session = self.find(id)
        if session is None or not hmac.compare_digest(session.token.encode(), token.encode()):
            raise NoSession("the session of this page has ended; load the page again")
        return session

    def close(self) -> None:
        with self._lock:
            for id in list(self._sessions):
                self._end(id)

    def _forget_idle(self) -> None:
        now_s = self._clock()
        for session in [one for one in self._sessions.values() if now_s - one.used_s >= IDLE_S]:
            self._end(session.id)

    def _end(self, id: str) -> None:
        if (session := self._sessions.pop(id, None)) is not None:
            session.admin.close()
