"""The options of `view`, which reads tables of lag, offsets, queues, groups and brokers in place of messages.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rocketsim_client.connection import PROTOCOLS, Connection
from rocketsim_source.options.option_values import (
    OptionError,
    address_map,
    addresses,
    boolean,
    check_tls,
    choice,
    credentials,
    group_name,
    instance,
    milliseconds,
    option,
    option_names,
    read_options,
    secret,
    text,
    topic_to_read,
)
from rocketsim_source.options.source_options import FROM_SPARK, SourceOptions, refuse_instance, topics_to_read

MESSAGES = "messages"
VIEWS = ("lag", "offsets", "queues", "groups", "brokers")
# The views that the option group can restrict, and the views that the options topic and subscribe can restrict.
OF_A_GROUP = frozenset({"lag", "offsets", "groups"})
OF_TOPICS = frozenset({"lag", "offsets", "queues"})


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """The options of one view.  `group` and `topics` restrict the view.  A view without `group` and `topics` shows all
    groups and topics.
    """

    view: str = option("view", choice(*VIEWS), "")
    name_server: tuple[str, ...] = option("nameServer", addresses, (), "namesrvAddr")
    group: str | None = option("group", group_name, None, "consumerGroup", "kafka.group.id")
    topic: tuple[str, ...] = option("topic", lambda value: (topic_to_read(value),), ())
    subscribe: tuple[str, ...] = option("subscribe", topics_to_read, ())
    timeout_ms: int = option("pullTimeoutMs", milliseconds(1), 5000)
    strict: bool = option("strictOptions", boolean, True)
    channel: dict[str, int | str] = field(default_factory=dict)  # grpc.*
    access_key: str | None = option("accessKey", text)
    secret_key: str | None = secret("secretKey")
    tls: bool = option("tls", boolean, False)
    tls_ca: str | None = option("tlsCa", text)  # a file that exists on every machine
    tls_cert: str | None = option("tlsCert", text)
    tls_key: str | None = option("tlsKey", text)
    protocol: str = option("protocol", choice(*PROTOCOLS), "auto")
    # The next options are for Apache RocketMQ's servers only.
    security_token: str | None = secret("securityToken")
    address_map: str = option("addressMap", address_map, "")
    namespace: str | None = option("namespace", instance)
    namespace_v2: str | None = option("namespaceV2", instance)

    def __post_init__(self) -> None:
        if not self.name_server:
            raise OptionError(f"view={self.view} needs nameServer=host:port: a name server knows all brokers")
        if self.topic and self.subscribe:
            raise OptionError("options topic and subscribe exclude each other; give one of them")
        if self.group is not None and self.view not in OF_A_GROUP:
            raise OptionError(f"view={self.view} is not about groups: leave out group={self.group}")
        if self.topics and self.view not in OF_TOPICS:
            raise OptionError(f"view={self.view} is not about topics: leave out {', '.join(self.topics)}")
        check_tls(self.tls, tlsCa=self.tls_ca, tlsCert=self.tls_cert, tlsKey=self.tls_key)
        credentials(self.access_key, self.secret_key)

    @property
    def topics(self) -> tuple[str, ...]:
        return self.topic or self.subscribe

    @property
    def connection(self) -> Connection:
        return Connection.of(
            self.name_server,
            timeout_s=self.timeout_ms / 1000,
            channel_options=self.channel,
            access_key=self.access_key or "",
            secret_key=self.secret_key or "",
            tls=self.tls,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            protocol=self.protocol,
            security_token=self.security_token or "",
            address_map=self.address_map,
            namespace=self.namespace or "",
            namespace_v2=self.namespace_v2 or "",
        )


def view_of(given: Mapping[str, str]) -> str:
    """Returns the view that the options name, or messages if they name none.

    Raises OptionError for an unknown view.
    """
    named = next((value for name, value in given.items() if name.lower() == "view"), MESSAGES)
    try:
        return str(choice(MESSAGES, *VIEWS)(named))
    except OptionError as error:
        raise OptionError(f"option view = {named!r}: {error}") from None


def view_options(given: Mapping[str, str]) -> ViewOptions:
    own, of_messages = option_names(ViewOptions), option_names(SourceOptions)
    known = {name.lower() for name in own}
    for name in of_messages:
        if name.lower() in known or name.lower() not in {key.lower() for key in given}:
            continue
        raise OptionError(
            f"option {name} is for reading messages, not for view={view_of(given)}, which takes {', '.join(own)}"
        )
    options = read_options(ViewOptions, given, also=FROM_SPARK)
    refuse_instance(options.topics, lambda: options.connection)
    refuse_instance([options.group or ""], lambda: options.connection, "group")
    return options


def refuse_view(given: Mapping[str, str], what: str) -> None:
    """Raises OptionError if the options name a view.  `what` completes the error's text, for example with "written
    to"."""
    if (view := view_of(given)) != MESSAGES:
        raise OptionError(f"view={view} cannot be {what}: it is a table for spark.read")
