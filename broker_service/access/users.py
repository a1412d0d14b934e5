"""The users of access control and their names, as RocketMQ 5 has them.  Pure.

A name, password, type or status that is not allowed raises ValueError.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from broker_service.access.words import word_of
from broker_service.names import check_credentials, is_username


class UserType(StrEnum):
    SUPER = "Super"  # may do everything
    NORMAL = "Normal"


class UserStatus(StrEnum):
    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class User:
    """A user.  `password` is the secret key itself and no hash, since a signature can be checked only with the key."""

    username: str = ""
    password: str = field(default="", repr=False)
    user_type: str = UserType.NORMAL
    user_status: str = UserStatus.ENABLE

    def __post_init__(self) -> None:
        check_credentials(self.username, self.password)
        object.__setattr__(self, "user_type", str(word_of(UserType, self.user_type)))
        object.__setattr__(self, "user_status", str(word_of(UserStatus, self.user_status)))

    @property
    def name(self) -> str:
        return self.username

    @property
    def is_super(self) -> bool:
        return self.user_type == UserType.SUPER

    @property
    def is_disabled(self) -> bool:
        return self.user_status == UserStatus.DISABLE


def user_of(subject: str) -> str:
    """Returns the name in `User:name`."""
    kind, _, name = subject.partition(":")
    if kind != "User" or not is_username(name):
        raise ValueError(f"subject {subject!r}: expected User:name")
    return name
