"""Gate: whether a call may be made.  It has no network; `interceptor.py` asks it."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from rocketsim_proto.signature import Credentials

from broker_service.access import signature
from broker_service.access.decision import Address, Policies
from broker_service.access.model import Decision, ResourceType, User, UserType, address_of
from broker_service.access.rights import Caller, Need, Right
from broker_service.errors import AccessDenied

Headers = Iterable[tuple[str, str | bytes]]

_WHO = {Caller.SUPER_USER: "super users and brokers", Caller.BROKER: "brokers"}


class Gate:
    """`rights`: of every method, by its path.  `policies` of a user; None: users need no rights (authorizationEnabled
    is false).  `v2`: its callers are RocketMQ 5's clients.  `client_of`: a caller's address by `context.peer()`.
    `brokers_user`: whom `find_user` finds for the calls of brokers to each other.
    """

    def __init__(
        self,
        rights: Mapping[str, Right],
        *,
        find_user: signature.FindUser,
        policies: Callable[[str], Policies] | None,
        cluster_name: str,
        now_s: Callable[[], float],
        v2: bool = False,
        client_of: Callable[[str], str] = str,
        brokers_user: User | None = None,
    ) -> None:
        self._rights = rights
        self._find_user = find_user
        self._policies = policies
        self._cluster_name = cluster_name
        self._now_s = now_s
        self._v2 = v2
        self._client_of = client_of
        self._brokers_user = brokers_user

    def right_of(self, method: str) -> Right:
        """Raises AccessDenied for a method that nobody has said anything of."""
        if (right := self._rights.get(method)) is None:
            raise AccessDenied(f"access control knows no call {method}: nobody may make it")
        return right

    def caller(self, method: str, headers: Headers) -> User:
        """Raises NotAuthenticated."""
        text = {name: value for name, value in headers if isinstance(value, str)}
        if self._v2:
            return signature.v2_caller(text, self._find_user)
        return signature.own_caller(text, method, self._now_s(), self._find_user)

    def still(self, user: User) -> User:
        """The user of a call that was let in, as he is now.  Raises NotAuthenticated."""
        return signature.still(user, self._find_user)

    def address(self, peer: str) -> str:
        """Of a caller, without the port; "None" where there is none."""
        return str(source_of(self._client_of(peer)))

    @property
    def now_s(self) -> float:
        return self._now_s()

    def check(self, user: User, method: str, right: Right, peer: str, request: Any = None) -> None:
        """Raises AccessDenied unless the user may do what this request asks for.  Without a request: what can be said
        of the call before the first message of its stream."""
        if user is self._brokers_user or (user.is_super and right.caller is not Caller.BROKER):
            return
        source = source_of(self._client_of(peer))
        if right.caller in _WHO:
            raise AccessDenied(
                f"User:{user.username} has no permission to access {ResourceType.CLUSTER}:{self._cluster_name} from "
                f"{source}, only {_WHO[right.caller]} call {method.rpartition('/')[2]}.",
                user.username,
            )
        if right.needs is None or request is None or self._policies is None:
            return
        policies = self._policies(user.username)
        for need in dict.fromkeys(right.needs(request)):  # each once, however often the request says it
            self._check_need(user, need, policies, source)

    def _check_need(self, user: User, need: Need, policies: Policies, source: Address | None) -> None:
        name = self._cluster_name if need.kind is ResourceType.CLUSTER else need.name
        found = [policies.decide(need.kind, name, action, source, by_name=need.by_name) for action in need.actions]
        if Decision.ALLOW in found:
            return
        why = "the decision is deny" if Decision.DENY in found else "no matched policies"
        if need.by_name and Decision.DENY not in found:
            why += " with this very name, which messages of all topics ask for"
        raise AccessDenied(
            f"User:{user.username} has no permission to access {need.kind}:{name} from {source}, {why}. "
            f"Action: {' or '.join(need.actions)}.",
            user.username,
        )


def super_user(credentials: Credentials | None) -> User | None:
    """The user that a configuration names, whom no table has."""
    return User(credentials.access_key, credentials.secret_key, UserType.SUPER) if credentials is not None else None


@lru_cache(maxsize=4096)
def source_of(peer: str) -> Address | None:
    """The IP address in gRPC's `ipv4:127.0.0.1:4711`; None where there is none."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return address_of(rest.rpartition(":")[0].strip("[]").partition("%")[0])
