"""Refusals counts the calls that access control has refused, and decides which are logged.  Pure.

A log line about an unknown user has no text from the caller, because the text might contain a secret by mistake.
"""

from collections import Counter
from collections.abc import Iterator

from broker_service.errors import AccessDenied, UnknownUser
from broker_service.runtime.figures import Figure, by_labels

WINDOW_S = 60.0
MAX_LINES = 200  # log lines per window, for all callers together
MAX_TEXT = 300  # most characters of a logged error, which may contain text from the caller, such as a topic's name


class Refusals:
    """The refusals of a process.  `counts` are the refusals since the start, by reason and service."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        # user, address and reason of each line that was logged in this window
        self._logged: set[tuple[str, str, str]] = set()
        self._unlogged = 0  # refusals in this window that were not logged
        self._window = 0.0

    def figures(self) -> Iterator[Figure]:
        help_text = "Calls that access control has refused."
        counts = sorted(self.counts.items())
        yield by_labels("rocketsim_calls_refused", help_text, ("reason", "service"), counts, is_counter=True)

    def refused(self, error: AccessDenied, method: str, address: str, now_s: float) -> list[str]:
        """Counts a refusal and returns the lines to log.

        In each minute, only the first refusal with the same user, address and reason is logged.  `method` is
        `/package.Service/Method`, and is one that this server has.
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
        user = f"User:{error.user}" if error.user else "an unknown user"
        text = "" if isinstance(error, UnknownUser) else f": {str(error)[:MAX_TEXT]!a}"
        lines.append(f"access control refuses {service}/{call} by {user} from {address} ({error.reason}){text}")
        return lines
