"""Asks name servers one after the other, over any protocol, and begins with the one that answered last."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rocketsim_client.at_once import at_once
from rocketsim_client.errors import (
    BadAnswer,
    CallTimeout,
    NameServerUnavailable,
    RocketSimError,
    TlsFailed,
    TopicNotExist,
    Unreachable,
)
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
        """Calls `ask` with one address after the other, and returns the first answer.  A name server that cannot be
        reached, with which TLS fails or whose answer cannot be read leaves the question to the next one.

        Raises TopicNotExist only if every name server that answers says so, because a name server that has just started
        knows no topics yet.  Raises NameServerUnavailable, which says what is wrong with each name server, if one of
        them could not be reached and none has answered.  Otherwise raises the first failure."""
        unknown: TopicNotExist | None = None
        failures: list[RocketSimError] = []
        unreachable = self._unreachable.current(time.monotonic())
        for address in sorted(self._in_order(), key=lambda address: address in unreachable):
            if unknown and address in unreachable:
                break  # asking an unreachable name server would probably cost a timeout for nothing
            try:
                answer = ask(address)
            except TopicNotExist as error:
                unknown = error
            except (TlsFailed, BadAnswer) as error:
                failures.append(error)
                if len(self._addresses) > 1:
                    logger.warning("name server %s has no answer that this client can use: %s", address, error)
            except Unreachable as error:
                failures.append(error)
                if self._unreachable.failed(address, time.monotonic(), silent=isinstance(error, CallTimeout)):
                    logger.warning("name server %s is tried last for a while: %s", address, error)
            else:
                if self._unreachable.answered(address):
                    logger.info("name server %s answers again", address)
                self._preferred = self._addresses.index(address)
                return answer
        unusable = [failure for failure in failures if not isinstance(failure, Unreachable)]
        if unknown and not unusable:
            raise unknown
        if unknown or len(failures) == len(unusable) == 1:
            raise unusable[0]
        each = "; ".join(dict.fromkeys(map(str, failures)))
        if len(failures) == len(unusable):
            failure = unusable[0].again()
            failure.args = (each,)
            raise failure from unusable[0]
        servers = "; ".join(self._addresses)
        raise NameServerUnavailable(f"no name server answered ({servers}): {each}") from failures[-1]

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
