"""Actions: what a user can change from a page.  Each action has a form and a function that makes the calls.

The forms hold text.  An action changes only the settings that its values name, and leaves the others of each broker as
they are, like `rocketsim admin updateTopic` and `updateSubGroup`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rocketsim_client.admin import Admin, at_each
from rocketsim_client.admin_model import Promotion, SubscriptionGroupConfig, TopicConfig
from rocketsim_client.errors import GroupNotExist, InvalidParameter, TopicNotExist

Values = Mapping[str, str]

MESSAGE_TYPE = "message.type"
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
PERMISSIONS = ("6", "4", "2")
FLAG = ("true", "false")
MAX_QUEUES = 1024


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a form.  `value` is the initial text of the input.  If the field has `choices`, the user picks one
    of these. `kind` is the type of an HTML input, where `datetime-local` arrives as milliseconds since 1970.
    """

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """`place` is the page that offers the action: topics, topic, groups, group, or broker.  An action for brokers is
    shown on the overview page, in the row of each broker that is in one of the `states`.  `fixed` is the name of the
    value that the page itself fills in.  An action that `is_dangerous` can lose messages or stop a broker, and has a
    red button.

    `run` returns a sentence about what was done, or raises an error of the client.
    """

    name: str
    title: str
    place: str
    does: str
    run: Callable[[Admin, Values], str]
    fixed: str = ""
    fields: tuple[Field, ...] = ()
    states: tuple[str, ...] = ()
    is_dangerous: bool = False

    def as_json(self) -> dict[str, Any]:
        """Returns the action as JSON for the pages, without the function."""
        return {
            **{
                name: getattr(self, name)
                for name in ("name", "title", "place", "does", "fixed", "states", "is_dangerous")
            },
            "fields": [asdict(field) for field in self.fields],
        }


# --- topics -------------------------------------------------------------------------------------------------------


def create_topic(admin: Admin, values: Values) -> str:
    topic = _name(values, "topic")
    if topic in admin.topic_list():
        raise InvalidParameter(f"topic {topic!r} exists already; change it on its own page")
    queues = _number(values, "queues", 1, MAX_QUEUES)
    kind = _choice(values, "message_type", MESSAGE_TYPES)
    made = admin.update_topic(topic, read_queue_nums=queues, write_queue_nums=queues, attributes={MESSAGE_TYPE: kind})
    return f"Topic {topic} has {queues} queues on each of {', '.join(made)}."


def change_topic(admin: Admin, values: Values) -> str:
    topic = _name(values, "topic")
    changes: dict[str, Any] = {name: _number(values, name, 0, MAX_QUEUES) for name in QUEUE_NUMBERS if name in values}
    if "perm" in values:
        changes["perm"] = int(_choice(values, "perm", PERMISSIONS))
    _some(changes)

    def change(address: str) -> None:
        config = _topic_at(admin, address, topic)
        if config is not None:
            now = replace(config, **changes)
            admin.update_topic(
                topic,
                read_queue_nums=now.read_queue_nums,
                write_queue_nums=now.write_queue_nums,
                perm=now.perm,
                order=now.order,
                attributes=now.attributes,
                broker_addr=address,
            )

    having = [address for address in admin.masters() if _topic_at(admin, address, topic) is not None]
    if not having:
        raise TopicNotExist(f"no master has topic {topic!r}")
    at_each(having, change)
    return f"Topic {topic} is changed on {', '.join(having)}."


def _topic_at(admin: Admin, address: str, topic: str) -> TopicConfig | None:
    return next((config for config in admin.topic_configs(address) if config.topic_name == topic), None)


# --- groups -------------------------------------------------------------------------------------------------------


def create_group(admin: Admin, values: Values) -> str:
    group = _name(values, "group")
    if any(_group_at(admin, address, group) is not None for address in admin.masters()):
        raise InvalidParameter(f"consumer group {group!r} exists already; change it on its own page")
    made = admin.update_sub_group(SubscriptionGroupConfig(group_name=group, **_group_changes(values)))
    return f"Consumer group {group} exists on {', '.join(made)}."


def change_group(admin: Admin, values: Values) -> str:
    group = _name(values, "group")
    changes = _group_changes(values)
    _some(changes)
    found = {address: _group_at(admin, address, group) for address in admin.masters()}
    having = {address: config for address, config in found.items() if config is not None}
    if not having:
        raise GroupNotExist(f"no master has settings of consumer group {group!r}; make them with New group")
    at_each(having, lambda at: admin.update_sub_group(replace(having[at], **changes), broker_addr=at))
    return f"Consumer group {group} is changed on {', '.join(having)}."


def _group_at(admin: Admin, address: str, group: str) -> SubscriptionGroupConfig | None:
    return next((config for config in admin.sub_groups(address) if config.group_name == group), None)


def _group_changes(values: Values) -> dict[str, Any]:
    changes: dict[str, Any] = {
        name: _choice(values, name, FLAG) == "true"
        for name in ("consume_enable", "consume_message_orderly")
        if name in values
    }
    if "retry_max_times" in values:
        changes["retry_max_times"] = _number(values, "retry_max_times", 0, 1_000_000)
    return changes


def reset_offsets(admin: Admin, values: Values) -> str:
    group, topic = _name(values, "group"), _name(values, "topic")
    at_ms = _number(values, "timestamp", 0, 1 << 53)
    moved = admin.reset_offset_by_time(group, topic, at_ms)
    messages = sum(one.previous - one.offset for one in moved if one.previous >= 0)
    again = f"{messages} messages are delivered again" if messages >= 0 else f"{-messages} messages are skipped"
    return f"Consumer group {group} is moved in {len(moved)} queues of topic {topic}: {again}."


# --- brokers ------------------------------------------------------------------------------------------------------


def promote(admin: Admin, values: Values) -> str:
    address = _name(values, "broker")
    return promotion_in_words(admin.promote_slave(address, force=_choice(values, "force", FLAG) == "true"))


def promotion_in_words(done: Promotion) -> str:
    words = [f"{done.address} is {done.broker_role or 'the master'} now, with epoch {done.epoch}."]
    if done.is_weaker:
        words.append("SEND_OK no longer means that a second broker has the message.")
    for lost in done.forfeits:
        size = "an unknown number of" if lost.bytes is None else str(lost.bytes)
        words.append(f"Broker {lost.broker_id} at {lost.address} will lose {size} bytes that only it has.")
    return " ".join(words)


# --- values -------------------------------------------------------------------------------------------------------


def _name(values: Values, name: str) -> str:
    if not values.get(name):
        raise InvalidParameter(f"{name}: give a name")
    return values[name]


def _number(values: Values, name: str, least: int, most: int) -> int:
    text = values.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 18 and least <= int(text) <= most):
        raise InvalidParameter(f"{name} {text[:40]!r} is not a number from {least} to {most}")
    return int(text)


def _choice(values: Values, name: str, choices: tuple[str, ...]) -> str:
    text = values.get(name, "")
    if text not in choices:
        raise InvalidParameter(f"{name} {text[:40]!r} is not one of {', '.join(choices)}")
    return text


def _some(changes: Mapping[str, Any]) -> None:
    if not changes:
        raise InvalidParameter("nothing was changed in the form")


QUEUE_NUMBERS = ("read_queue_nums", "write_queue_nums")
_GROUP_FIELDS = (
    Field("retry_max_times", "deliveries after the first", "number", "16"),
    Field("consume_message_orderly", "deliver in order (FIFO)", choices=("false", "true")),
)
OPERATORS = (
    Action(
        "create-topic",
        "New topic",
        "topics",
        "Creates the topic on every master.",
        create_topic,
        fields=(
            Field("topic", "topic"),
            Field("queues", "queues on each broker", "number", "8"),
            Field("message_type", "message type", choices=MESSAGE_TYPES),
        ),
    ),
    Action(
        "change-topic",
        "Change",
        "topic",
        "Changes these settings on every master that has the topic. Fewer queues hide the messages of the others.",
        change_topic,
        "topic",
        (
            Field("read_queue_nums", "queues to read", "number"),
            Field("write_queue_nums", "queues to write", "number"),
            Field("perm", "permission (6 both, 4 read, 2 write)", choices=PERMISSIONS),
        ),
    ),
    Action(
        "create-group",
        "New group",
        "groups",
        "Creates the consumer group on every master.",
        create_group,
        fields=(Field("group", "group"), *_GROUP_FIELDS),
    ),
    Action(
        "change-group",
        "Change",
        "group",
        "Changes these settings on every master that has the group.",
        change_group,
        "group",
        (Field("consume_enable", "may consume", choices=FLAG), *_GROUP_FIELDS),
    ),
    Action(
        "reset-offsets",
        "Reset offsets",
        "group",
        "Moves the group in all queues of the topic to the first message that was stored at or after this time. "
        "Messages after it are delivered again; earlier ones that were not consumed are skipped.",
        reset_offsets,
        "group",
        (Field("topic", "topic"), Field("timestamp", "time", "datetime-local")),
        is_dangerous=True,
    ),
    Action(
        "promote",
        "Promote",
        "broker",
        "Makes this slave the master of its broker name. Messages that only other brokers have are lost. "
        "Without force it is refused while the master answers, or while another slave has or may have more.",
        promote,
        "broker",
        (Field("force", "force the promotion", choices=("false", "true")),),
        ("slave",),
        is_dangerous=True,
    ),
)
