"""Keeps users and their policies in `rocketsim/users.json` and `acls.json`, which only their owner may read."""

from typing import NamedTuple

from broker_service.access.decision import Policies
from broker_service.access.policies import Acl, Policy
from broker_service.access.users import User, UserType, user_of
from broker_service.broker.metadata.config_table import ConfigTable, JsonStore, Planned
from broker_service.errors import InvalidParameter, NotFound

_NONE = Policies()


class UserTable(ConfigTable[User]):
    entry_class = User
    table_key = "users"

    def creating(self, user: User, now_ms: int) -> Planned[User] | None:
        if user.username in self.entries:
            raise InvalidParameter(f"User:{user.username} exists already; change it with updateUser")
        return self.putting(user, now_ms)

    def making_first(self, user: User, now_ms: int) -> Planned[User] | None:
        """Plans the creation of the user that the configuration names, unless a user of that name exists."""
        return None if user.username in self.entries else self.putting(user, now_ms)

    def updating(self, username: str, password: str, user_type: str, status: str, now_ms: int) -> Planned[User] | None:
        """Plans a change of a user.  An empty argument leaves the field as it is.  Raises ValueError for an unknown
        user type or status.
        """
        known = self.existing(username)
        return self.putting(
            User(username, password or known.password, user_type or known.user_type, status or known.user_status),
            now_ms,
        )

    def removing(self, username: str, now_ms: int) -> Planned[User] | None:
        self.existing(username)
        return self.deleting(username, now_ms)

    def existing(self, username: str) -> User:
        if (user := self.entries.get(username)) is None:
            raise NotFound(f"User:{username} does not exist here")
        return user


class AclTable(ConfigTable[Acl]):
    """The policies of each subject, which has the form `User:name`."""

    entry_class = Acl
    table_key = "acls"

    def __init__(self, file: JsonStore, tombstones_file: JsonStore) -> None:
        super().__init__(file, tombstones_file)
        self._policies = {subject: Policies(acl.parsed()) for subject, acl in self.entries.items()}
        self.changed.append(self._parse)

    def _parse(self, subject: str) -> None:
        acl = self.entries.get(subject)
        if acl is None:
            self._policies.pop(subject, None)
        else:
            self._policies[subject] = Policies(acl.parsed())

    def policies_of(self, username: str) -> Policies:
        return self._policies.get(f"User:{username}", _NONE)

    def creating(self, subject: str, policies: tuple[Policy, ...], now_ms: int) -> Planned[Acl] | None:
        """Plans to add policies to a subject.  As with RocketMQ's createAcl, the subject keeps the policies that it
        already has.
        """
        return self.putting((self.entries.get(subject) or Acl(subject)).with_policies(policies), now_ms)

    def updating(self, subject: str, policies: tuple[Policy, ...], now_ms: int) -> Planned[Acl] | None:
        return self.putting(self.existing(subject).with_policies(policies), now_ms)

    def removing(self, subject: str, resource: str, now_ms: int) -> Planned[Acl] | None:
        """Plans to remove a subject's policies for `resource`, or all of them if `resource` is empty."""
        known = self.existing(subject)
        if resource and resource not in known.policies:
            raise NotFound(f"{subject} has no policy for {resource} here; it has: {', '.join(sorted(known.policies))}")
        left = known.without(resource) if resource else Acl(subject)
        return self.putting(left, now_ms) if left.policies else self.deleting(subject, now_ms)

    def existing(self, subject: str) -> Acl:
        if (acl := self.entries.get(subject)) is None:
            raise NotFound(f"{subject} has no policies here")
        return acl


class AccessTables(NamedTuple):
    users: UserTable
    acls: AclTable

    async def make_first_user(self, username: str, password: str, now_ms: int) -> bool:
        """Creates the configured super user unless a user of that name exists.  Returns True if the user was
        created.
        """
        user = User(username, password, UserType.SUPER)
        return await self.users.apply(lambda: self.users.making_first(user, now_ms))

    def subject(self, text: str) -> str:
        """Checks that `text` is `User:name` and that this user exists, and returns it."""
        try:
            username = user_of(text)
        except ValueError as error:
            raise InvalidParameter(str(error)) from error
        self.users.existing(username)
        return text
