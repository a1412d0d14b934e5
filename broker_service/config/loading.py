"""Loads the configuration file of a broker or a name server, and reports all errors in it together."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from broker_service.config import rocketmq_keys
from broker_service.config.broker_config import BrokerConfig
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.config.properties import (
    Setting,
    expand_path,
    fields_by_key,
    is_required,
    parse_fields,
    read_settings,
    settings_from,
)
from broker_service.errors import ConfigError

logger = logging.getLogger(__name__)


class Restriction(NamedTuple):
    """The values that this project supports for a key of RocketMQ.

    `instead` tells an operator what to do instead of setting another value, or why another value is not supported.
    """

    allowed: frozenset[str]
    instead: str


_NO = frozenset({"false"})
_ONE_SLAVE = "a put waits for at most one slave in sync; use brokerRole=SYNC_MASTER"
_NO_CONTROLLER = "an operator makes a slave the master, with `admin promoteSlave`"
RESTRICTIONS = {
    "aclEnable": Restriction(_NO, "set authenticationEnabled and authorizationEnabled, RocketMQ 5's access control"),
    "useTLS": Restriction(_NO, "TLS is switched on by tlsCert and tlsKey"),
    "allAckInSyncStateSet": Restriction(_NO, _ONE_SLAVE),
    "inSyncReplicas": Restriction(frozenset({"1", "2"}), _ONE_SLAVE),
    "minInSyncReplicas": Restriction(
        frozenset({"1"}), "without a slave in sync a put is stored, and its status is SLAVE_NOT_AVAILABLE"
    ),
    "cleanFileForciblyEnable": Restriction(
        frozenset({"true"}), "set diskSpaceCleanForciblyRatio=100 to keep all files until they expire"
    ),
    "enableDLegerCommitLog": Restriction(_NO, "DLedger's log is another format"),
    "enableControllerMode": Restriction(_NO, _NO_CONTROLLER),
    "enableConsumeQueueExt": Restriction(_NO, "the extended consume queue is another format"),
    "storeType": Restriction(frozenset({"default"}), "only the default store, which consists of files, is supported"),
    "messageStorePlugIn": Restriction(frozenset({""}), "plug-ins of the store are not supported"),
    "readOnlyCommitLogStorePaths": Restriction(frozenset({""}), "the commit log has one directory"),
    "enableControllerInNamesrv": Restriction(_NO, _NO_CONTROLLER),
}


class Server(NamedTuple):
    """A kind of server process that has a configuration file."""

    name: str
    config_class: type[Any]
    rocketmqs: frozenset[str]  # the keys that RocketMQ has for this kind of server
    command: str


BROKER = Server("broker", BrokerConfig, rocketmq_keys.BROKER_KEYS, "rocketsim broker")
NAMESRV = Server("name server", NamesrvConfig, rocketmq_keys.NAMESRV_KEYS, "rocketsim namesrv")


def load_broker_config(path: Path, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
    """Reads the file; a key in `overrides` replaces the same key of the file.

    Raises ConfigError, whose message has a line for each error.
    """
    config: BrokerConfig = _load(BROKER, NAMESRV, path, overrides or {})
    return config


def load_namesrv_config(path: Path, overrides: Mapping[str, str] | None = None) -> NamesrvConfig:
    config: NamesrvConfig = _load(NAMESRV, BROKER, path, overrides or {})
    return config


def _load(server: Server, other: Server, path: Path, overrides: Mapping[str, str]) -> Any:
    settings = read_settings(path)
    settings.update(settings_from(overrides, "override"))
    known = fields_by_key(server.config_class)
    others = fields_by_key(other.config_class)
    instead = f"a {other.name} is started with `{other.command} -c {path}`"
    for setting in settings.values():
        if setting.key in others.keys() - known.keys() - server.rocketmqs:
            raise ConfigError(
                f"{setting.where}: {setting.key} is a {other.name}'s key, not a {server.name}'s; {instead}"
            )
    values: dict[str, Any] = {}
    errors: list[str] = []
    ignored: list[str] = []
    for setting in settings.values():
        if setting.key in known or setting.key not in server.rocketmqs:
            parsed, wrong = parse_fields(server.config_class, [setting])
            values |= parsed
            errors += wrong
        elif broken := broken_restriction(setting, settings):
            errors.append(f"{setting.where}: {setting.key}={setting.value} is not supported: {broken}")
        else:
            ignored.append(setting.key)
    missing = [name for name, field in known.items() if is_required(field) and name not in settings]
    errors += [f"{path}: {name} is missing: {known[name].metadata['doc']}" for name in missing]
    if missing and settings.keys() <= others.keys():
        errors.append(f"{path}: if this is a {other.name}'s file: {instead}")
    if errors:
        raise ConfigError("\n".join(errors))
    if ignored:
        logger.warning("%s: these keys of RocketMQ are ignored: %s", path, " ".join(ignored))
    try:
        return server.config_class(**values)
    except ConfigError as error:
        # A check of several keys together has failed, and the error names the keys.
        where = next((setting.where for setting in settings.values() if f"{setting.key}=" in str(error)), str(path))
        raise ConfigError(f"{where}: {error}") from None


def broken_restriction(setting: Setting, settings: Mapping[str, Setting]) -> str:
    """Returns what to do instead, if a key of RocketMQ has a value that is not supported; otherwise ""."""
    if setting.key == "storePathCommitLog":
        root = settings.get("storePathRootDir")  # a missing storePathRootDir is reported by another check
        inside = root and expand_path(setting.value) == expand_path(root.value) / "commitlog"
        return "" if inside or not root else "it must be storePathRootDir/commitlog; leave it out"
    restriction = RESTRICTIONS.get(setting.key)
    return restriction.instead if restriction and setting.value not in restriction.allowed else ""
