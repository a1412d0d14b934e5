"""Every accepted configuration key is read by code of the broker."""

import inspect
import re
from pathlib import Path

import pytest

import broker_service
from broker_service.config.broker_config import BrokerConfig
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.config.properties import fields_by_key

CODE = "\n".join(
    path.read_text()
    for path in sorted(Path(broker_service.__file__).parent.rglob("*.py"))
    if path.name not in ("config.py", "properties.py")
)
KEYS = [(config, name) for config in (BrokerConfig, NamesrvConfig) for name in fields_by_key(config)]


def is_read(name: str) -> bool:
    return re.search(rf"config\.{name}\b", CODE) is not None


@pytest.mark.parametrize(("config", "key"), KEYS, ids=lambda value: getattr(value, "__name__", value))
def test_code_reads_every_key_or_a_value_that_is_made_of_it(config, key):
    field = fields_by_key(config)[key].name
    derived = [
        name
        # includes members of the class that both configurations share
        for name, made in inspect.getmembers_static(config)
        if isinstance(made, property) and f"self.{field}" in inspect.getsource(made.fget)
    ]
    assert any(map(is_read, [field, *derived]))
