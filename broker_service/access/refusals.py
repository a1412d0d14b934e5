"""Refusals: how many calls access control has refused, and which of them are logged.  Pure: the clock is an argument.

A line has no text of the caller's where the caller is not known: a secret may be in it by mistake.
"""

from collections import Counter

from broker_service.errors import AccessDenied, UnknownUser

WINDOW_S = 60.0
MAX_LINES = 200  # in a window, from however many addresses they come
MAX_TEXT = 300  # characters of the caller's, as topics' names are


class Refusals:
    """`counts`: since the start, by reason and service."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._logged: set[tuple[str, str, str]] = set()  # in this window: user, address, reason
        self._unlogged = 0  # of the others in this window
        self._window = 0.0

    def refused(self, error: AccessDenied, method: str, address: str, now_s: float) -> list[str]:
        """The lines to log: of a user, an address and a reason the first one in a minute.

        `method`: `/package.Service/Method`, one that is served.
        """
        service, _, call = method.rpartition("/")
        service = service.rpartition(".")[2].lstrip("/")
        self.counts[error.reason, service] += 1
        lines = []
        if not 0 <= now_s - self._window < WINDOW_S:
            if self._unlogged:
                lines.append(f"access control: {self._unlogged} more refusals were not logged")
            self._logged.clear()
            self._window, self._unlogged = now_s, 0
        who = error.user, address, error.reason
        if who in self._logged or len(self._logged) >= MAX_LINES:
            self._unlogged += 1
            return lines
        self._logged.add(who)
        user = f"User:{error.user}" if error.user else "nobody who is known"
        text = "" if isinstance(error, UnknownUser) else f": {str(error)[:MAX_TEXT]!a}"
        lines.append(f"access control refuses {service}/{call} by {user} from {address} ({error.reason}){text}")
        return lines
