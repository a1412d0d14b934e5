"""Loads the configuration file of a broker or a name server, and says everything that is wrong in it."""

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
    """The only values that a key of RocketMQ may have here: any other value asks for something that we do not do."""

    allowed: frozenset[str]
    instead: str


_NO = frozenset({"false"})
_ONE_SLAVE = "one slave in sync releases a put; use brokerRole=SYNC_MASTER"
RESTRICTIONS = {
    "aclEnable": Restriction(_NO, "set authenticationEnabled and authorizationEnabled, RocketMQ 5's access control"),
    "useTLS": Restriction(_NO, "TLS is switched on by tlsCert and tlsKey"),
    "allAckInSyncStateSet": Restriction(_NO, "one slave in sync releases a put; use brokerRole=SYNC_MASTER"),
    "inSyncReplicas": Restriction(
        frozenset({"1", "2"}), "one slave in sync releases a put; use brokerRole=SYNC_MASTER"
    ),
    "minInSyncReplicas": Restriction(frozenset({"1"}), "a put without a slave is stored and says SLAVE_NOT_AVAILABLE"),
    "cleanFileForciblyEnable": Restriction(
        frozenset({"true"}), "set diskSpaceCleanForciblyRatio=100 to keep files until their time"
    ),
    "enableDLegerCommitLog": Restriction(_NO, "DLedger's log is another format"),
    "enableControllerMode": Restriction(_NO, "masters are made by `admin promoteSlave`"),
    "enableConsumeQueueExt": Restriction(_NO, "the extended consume queue is another format"),
    "storeType": Restriction(frozenset({"default"}), "only the default store of files is there"),
    "messageStorePlugIn": Restriction(frozenset({""}), "there are no store plug-ins"),
    "readOnlyCommitLogStorePaths": Restriction(frozenset({""}), "the commit log has one directory"),
    "enableControllerInNamesrv": Restriction(_NO, "masters are made by `admin promoteSlave`"),
}


class Server(NamedTuple):
    """A kind of process that a file can be for."""

    name: str
    config_class: type[Any]
    rocketmqs: frozenset[str]  # the keys that RocketMQ's has
    command: str


BROKER = Server("broker", BrokerConfig, rocketmq_keys.BROKER_KEYS, "rocketsim broker")
NAMESRV = Server("name server", NamesrvConfig, rocketmq_keys.NAMESRV_KEYS, "rocketsim namesrv")


def load_broker_config(path: Path, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
    """The file, then `overrides` (by RocketMQ's keys).  Raises ConfigError with a line for everything that is wrong."""
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
        logger.warning("%s: keys of RocketMQ that do nothing here: %s", path, " ".join(ignored))
    try:
        return server.config_class(**values)
    except ConfigError as error:
        # Found only once all keys were read together; the message names those concerned.
        where = next((setting.where for setting in settings.values() if f"{setting.key}=" in str(error)), str(path))
        raise ConfigError(f"{where}: {error}") from None


def broken_restriction(setting: Setting, settings: Mapping[str, Setting]) -> str:
    """What to do instead, when a key of RocketMQ asks for something that would silently not be so."""
    if setting.key == "storePathCommitLog":
        root = settings.get("storePathRootDir")  # its absence is an error of its own
        inside = root and expand_path(setting.value) == expand_path(root.value) / "commitlog"
        return "" if inside or not root else "it must be storePathRootDir/commitlog; leave it out"
    restriction = RESTRICTIONS.get(setting.key)
    return restriction.instead if restriction and setting.value not in restriction.allowed else ""
