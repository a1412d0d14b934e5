"""Gate decides, without I/O, if a call may be made.  `interceptor.py` and `remoting.py` ask the gate."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote

from rocketsim_proto.remoting.frame import Header
from rocketsim_proto.signature import Credentials

from broker_service.access import signature
from broker_service.access.decision import Address, Policies
from broker_service.access.policies import Decision
from broker_service.access.resources import ResourceType
from broker_service.access.rights import Caller, Need, Right
from broker_service.access.source_networks import address_of
from broker_service.access.users import User, UserType
from broker_service.errors import AccessDenied
from broker_service.runtime.clocks import WallClock

Headers = Iterable[tuple[str, str | bytes]]

_WHO = {Caller.SUPER_USER: "super users and brokers", Caller.BROKER: "brokers"}


class Users(Protocol):
    """The users that a server knows, and what they may do."""

    @property
    def cluster_name(self) -> str: ...

    @property
    def brokers_user(self) -> User | None:
        """The user with which brokers call each other.  `find_user` also returns this user for the user's name."""

    def find_user(self, username: str) -> User | None: ...

    def policies_of(self, username: str) -> Policies | None:
        """Returns the policies of a user; None if users need no policies, since authorizationEnabled is false."""


class Addresses(Protocol):
    """The addresses of clients whose connections pass through another socket of this process."""

    def client_of(self, peer: str) -> str:
        """Returns the address of a client, in gRPC's form, for the value of `context.peer()`."""


class Gate:
    """The decisions for one port of a server.

    `rights` has the right that each method needs, by the method's path.  `v2` is True if the callers are RocketMQ 5's
    clients, which sign in another way.  Without `addresses`, the address of a caller is the value of `context.peer()`.
    """

    def __init__(
        self,
        rights: Mapping[str, Right],
        users: Users,
        clock: WallClock,
        *,
        v2: bool = False,
        addresses: Addresses | None = None,
    ) -> None:
        self._rights = rights
        self._users = users
        self._find_user = users.find_user
        self._clock = clock
        self._v2 = v2
        self._addresses = addresses

    def right_of(self, method: str) -> Right:
        """Returns the right that a method needs; raises AccessDenied for an unknown method."""
        if (right := self._rights.get(method)) is None:
            raise AccessDenied(f"access control has no rule for the call {method}: nobody may make it")
        return right

    def caller(self, method: str, headers: Headers) -> User:
        """Returns the user who signed the call; raises NotAuthenticated."""
        text = {name: value for name, value in headers if isinstance(value, str)}
        if self._v2:
            return signature.v2_caller(text, self._find_user)
        return signature.own_caller(text, method, self.now_s, self._find_user)

    def remoting_caller(self, header: Header, body: bytes) -> User:
        """Returns the user who signed a request of RocketMQ's remoting protocol; raises NotAuthenticated."""
        return signature.remoting_caller(header, body, self._find_user)

    def current(self, user: User) -> User:
        """Returns the current state of the user of an admitted call.  Raises NotAuthenticated if a new call of the user
        would be refused.
        """
        return signature.current(user, self._find_user)

    def address(self, peer: str) -> str:
        """Returns the address of a caller without its port; "None" if the peer is not an IP address."""
        return str(self._source_of(peer))

    @property
    def now_s(self) -> float:
        return self._clock.now_ms() / 1000

    def check(self, user: User, method: str, right: Right, peer: str, request: Any = None) -> None:
        """Raises AccessDenied unless the user may make this request.

        If there is no request, checks only what is known before the first message of a stream.
        """
        if user is self._users.brokers_user or (user.is_super and right.caller is not Caller.BROKER):
            return
        source = self._source_of(peer)
        if right.caller in _WHO:
            raise AccessDenied(
                f"User:{user.username} has no permission to access {ResourceType.CLUSTER}:{self._users.cluster_name} "
                f"from {source}, only {_WHO[right.caller]} call {method.rpartition('/')[2]}.",
                user.username,
            )
        if right.needs is None or request is None:
            return
        policies = self._users.policies_of(user.username)
        if policies is None:
            return
        # each required right is checked once, even if the request names it several times
        for need in dict.fromkeys(right.needs(request)):
            self._check_need(user, need, policies, source)

    def _source_of(self, peer: str) -> Address | None:
        return source_of(peer if self._addresses is None else self._addresses.client_of(peer))

    def _check_need(self, user: User, need: Need, policies: Policies, source: Address | None) -> None:
        name = self._users.cluster_name if need.kind is ResourceType.CLUSTER else need.name
        found = [policies.decide(need.kind, name, action, source, by_name=need.by_name) for action in need.actions]
        if Decision.ALLOW in found:
            return
        why = "the decision is deny" if Decision.DENY in found else "no matched policies"
        if need.by_name and Decision.DENY not in found:
            why += " with exactly this name, which a topic with messages of all topics requires"
        raise AccessDenied(
            f"User:{user.username} has no permission to access {need.kind}:{name} from {source}, {why}. "
            f"Action: {' or '.join(need.actions)}.",
            user.username,
        )


def super_user(credentials: Credentials | None) -> User | None:
    """Makes the super user that the configuration names; this user is in no table."""
    return User(credentials.access_key, credentials.secret_key, UserType.SUPER) if credentials is not None else None


@lru_cache(maxsize=4096)
def source_of(peer: str) -> Address | None:
    """Returns the IP address in gRPC's `ipv4:127.0.0.1:4711`; None if the peer is not an IP address."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return address_of(rest.rpartition(":")[0].strip("[]").partition("%")[0])
