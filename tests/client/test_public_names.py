"""The names that `from rocketsim_client import ...` provides."""

import inspect
import sys
from typing import get_args, get_type_hints

import pytest

import rocketsim_client
from rocketsim_client import aio, errors


def test_every_public_name_is_there_under_its_own_name() -> None:
    for name in rocketsim_client.__all__:
        value = getattr(rocketsim_client, name)
        assert getattr(value, "__name__", name) == name


def test_every_error_is_public() -> None:
    classes = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert classes <= set(rocketsim_client.__all__)


def test_every_type_of_a_public_result_is_public() -> None:
    """Every type that a public method returns is public, and so are the types of that type's fields."""
    seen: set[type] = set()
    classes = [getattr(rocketsim_client, name) for name in ("Producer", "Consumer", "PullConsumer", "Admin")]
    for public in [*classes, *(getattr(aio, name) for name in aio.__all__)]:
        for method in vars(public).values():
            if isinstance(method, property):
                method = method.fget
            if inspect.isfunction(method) and (not method.__name__.startswith("_")):
                add_ours(seen, get_type_hints(method, vars(sys.modules[public.__module__])).get("return"))
    missing = {kind.__name__ for kind in seen} - {*rocketsim_client.__all__, *aio.__all__}
    assert len(seen) > 15 and not missing


def add_ours(seen: set[type], hint: object) -> None:
    for part in get_args(hint):
        add_ours(seen, part)
    if isinstance(hint, type) and hint.__module__.startswith("rocketsim_client") and hint not in seen:
        seen.add(hint)
        if hint is not rocketsim_client.Cluster:
            for name, field in get_type_hints(hint).items():
                if not name.startswith("_"):
                    add_ours(seen, field)


def test_another_name_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="'rocketsim_client' has no attribute 'Broker'"):
        _ = rocketsim_client.Broker  # type: ignore[attr-defined]


def test_every_public_class_and_method_has_a_docstring() -> None:
    missing = []
    for name in [*rocketsim_client.__all__, *aio.__all__]:
        value = getattr(rocketsim_client, name, None) or getattr(aio, name)
        if not inspect.isclass(value):
            continue
        # a dataclass without a docstring of its own gets this one
        if "__doc__" not in vars(value) or (value.__doc__ or "").startswith(f"{name}("):
            missing.append(name)
        for attribute, member in vars(value).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if not attribute.startswith("_") and inspect.isfunction(function) and not function.__doc__:
                missing.append(f"{name}.{attribute}")
    assert not missing
