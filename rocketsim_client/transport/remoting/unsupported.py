"""Stands for the calls that this client does not make over RocketMQ's remoting protocol."""

from typing import NoReturn

from rocketsim_client.errors import NotSupported


class UnsupportedCalls:
    """Raises NotSupported for every call, and names the call in the error."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> "UnsupportedCall":
        if name.startswith("_"):
            raise AttributeError(name)
        return UnsupportedCall(f"{self._what} ({name})")


class UnsupportedCall:
    def __init__(self, what: str) -> None:
        self._what = what

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise NotSupported(f"{self._what}: not supported over RocketMQ's remoting protocol")
