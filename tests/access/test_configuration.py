"""The keys of access control: which values are refused, and that no list, representation or error shows a secret."""

import dataclasses
import json
from pathlib import Path

import pytest
from rocketsim_proto.signature import Credentials

from broker_service.config.broker_config import BrokerConfig
from broker_service.config.loading import load_broker_config, load_namesrv_config
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.config.properties import as_properties
from broker_service.errors import ConfigError
from broker_service.namesrv.server import interceptors

SECRET = "s3cr3t"
USER = json.dumps({"username": "admin", "password": SECRET})
INNER = json.dumps({"accessKey": "broker", "secretKey": SECRET})
KEYS = f"authenticationEnabled=true\ninitAuthenticationUser={USER}\ninnerClientAuthenticationCredentials={INNER}\n"
NAMES = ("initAuthenticationUser", "innerClientAuthenticationCredentials")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    broker, names = tmp_path / "broker.properties", tmp_path / "namesrv.properties"
    broker.write_text(f"brokerName=a\nstorePathRootDir={tmp_path}\nauthorizationEnabled=true\n{KEYS}")
    names.write_text(KEYS)
    return broker, names


def test_brokers_and_name_servers_know_the_same_users(files: tuple[Path, Path]) -> None:
    for config in (load_broker_config(files[0]), load_namesrv_config(files[1])):
        assert config.authentication_enabled
        assert (config.init_user, config.inner_credentials) == (
            Credentials("admin", SECRET),
            Credentials("broker", SECRET),
        )
        assert SECRET not in repr(config)
        assert {as_properties(config)[name] for name in NAMES} == {"******"}
    assert as_properties(NamesrvConfig())["initAuthenticationUser"] == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("admin:s3cr3t", "expected {"),
        ("[]", "expected {"),
        ('{"username":"admin","secretKey":"s3cr3t"}', "expected {"),
        ('{"username":"admin","password":5}', "expected {"),
        ('{"username":"admin","password":"s3cr3t s3cr3t"}', "password of user admin: expected 1 to 255 printable"),
        ('{"username":"a b","password":"s3cr3t"}', "username 'a b'"),
    ],
)
def test_an_invalid_user_is_refused_without_showing_its_secret(files: tuple[Path, Path], text: str, said: str) -> None:
    for load, file in ((load_broker_config, files[0]), (load_namesrv_config, files[1])):
        with pytest.raises(ConfigError) as refused:
            load(file, {"initAuthenticationUser": text})
        assert "initAuthenticationUser" in str(refused.value) and said in str(refused.value)
        assert SECRET not in str(refused.value)


def test_a_secret_is_not_in_the_error_of_a_key_that_cannot_be_read(files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_broker_config(files[0], {"initAuthenticationUser": f"{SECRET}\0"})
    assert SECRET not in str(refused.value)


def test_what_would_lock_the_brokers_out_is_refused(files: tuple[Path, Path]) -> None:
    for load, file in ((load_broker_config, files[0]), (load_namesrv_config, files[1])):
        with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials"):
            load(file, {"innerClientAuthenticationCredentials": ""})
        with pytest.raises(ConfigError, match="names the same user as innerClientAuthenticationCredentials"):
            load(file, {"initAuthenticationUser": '{"username":"broker","password":"x"}'})


def test_what_a_name_server_cannot_enforce_is_refused_by_name(files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="authorizationEnabled is a broker's key"):
        load_namesrv_config(files[1], {"authorizationEnabled": "true"})


def test_access_control_that_is_switched_off_is_like_none(files: tuple[Path, Path]) -> None:
    """Credentials without access control only make the broker sign its own calls."""
    config = load_namesrv_config(files[1])
    assert interceptors(config)
    assert interceptors(dataclasses.replace(config, authentication_enabled=False)) == []
    broker = load_broker_config(files[0], {"authenticationEnabled": "false", "authorizationEnabled": "false"})
    assert isinstance(broker, BrokerConfig) and broker.inner_credentials is not None
