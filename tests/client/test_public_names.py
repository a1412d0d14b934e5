"""What `from rocketsim_client import ...` gives."""

import pytest

import rocketsim_client


def test_every_public_name_is_there_under_its_own_name() -> None:
    for name in rocketsim_client.__all__:
        assert getattr(rocketsim_client, name).__name__ == name


def test_another_name_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="'rocketsim_client' has no attribute 'Broker'"):
        _ = rocketsim_client.Broker  # type: ignore[attr-defined]
