"""Fixed users for an access gate that has neither tables nor a configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_service.access.decision import Policies
from broker_service.access.users import User


@dataclass
class KnownUsers:
    users: Mapping[str, User] = field(default_factory=dict)
    policies: Policies | None = None  # the policies of every user, or None if users need no rights
    cluster_name: str = "north"
    brokers_user: User | None = None

    def find_user(self, username: str) -> User | None:
        return self.users.get(username)

    def policies_of(self, username: str) -> Policies | None:
        return self.policies


class Midnight:
    """A clock that always says 1970-01-01, 0:00."""

    def now_ms(self) -> int:
        return 0
