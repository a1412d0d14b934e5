"""Asks name servers one after the other, over any protocol, and begins with the one that answered last."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rocketsim_client.at_once import at_once
from rocketsim_client.errors import CallTimeout, NameServerUnavailable, TopicNotExist, Unreachable
from rocketsim_client.transport.unreachable import UnreachableAddresses

T = TypeVar("T")

logger = logging.getLogger(__name__)


class NameServers:
    """The name servers of a connection.  Name servers share nothing, so one name server may know a topic or a broker
    that another does not know yet."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._preferred = 0
        self._unreachable = UnreachableAddresses()

    def ask(self, ask: Callable[[str], T]) -> T:
        """Calls `ask` with one address after the other, and returns the first answer.  Raises TopicNotExist only if
        every name server that answers says so, because a name server that has just started knows no topics yet."""
        unknown: TopicNotExist | None = None
        failure: Unreachable | None = None
        unreachable = self._unreachable.current(time.monotonic())
        for address in sorted(self._in_order(), key=lambda address: address in unreachable):
            if unknown and address in unreachable:
                break  # asking an unreachable name server would probably cost a timeout for nothing
            try:
                answer = ask(address)
            except TopicNotExist as error:
                unknown = error
            except Unreachable as error:
                failure = error
                if self._unreachable.failed(address, time.monotonic(), silent=isinstance(error, CallTimeout)):
                    logger.warning("name server %s is tried last for a while: %s", address, error)
            else:
                if self._unreachable.answered(address):
                    logger.info("name server %s answers again", address)
                self._preferred = self._addresses.index(address)
                return answer
        if unknown:
            raise unknown
        servers = "; ".join(self._addresses)
        raise NameServerUnavailable(f"no name server answered ({servers}): {failure}") from failure

    def change(self, what: str, change: Callable[[str], int]) -> dict[str, int]:
        """Makes a change on every name server, and returns their answers by address.  Raises NameServerUnavailable,
        which names the servers that made the change, if another one refuses or does not answer.  If all name servers
        refuse the change, raises the first refusal itself."""
        changed, refusals = at_once(self._addresses, change)
        if refusals:
            first = next(iter(refusals.values()))
            if not changed and not isinstance(first, Unreachable):
                raise first
            done = f"; done at {', '.join(changed)}" if changed else ""
            raise NameServerUnavailable(f"{what}: {first}{done}") from first
        return changed

    def _in_order(self) -> list[str]:
        return self._addresses[self._preferred :] + self._addresses[: self._preferred]
