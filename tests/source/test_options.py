"""The syntax of options: accepted values, and the messages of refusals."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketsim_client.expression import SqlExpression, TagExpression
from rocketsim_client.model import MessageQueue
from rocketsim_source.options.data_loss import KINDS
from rocketsim_source.options.option_values import OptionError, nearest, option_names
from rocketsim_source.options.positions import PerQueue, assignment, positions
from rocketsim_source.options.sink_options import SinkOptions, sink_options
from rocketsim_source.options.source_options import SourceOptions, source_options

BASE = {"nameServer": "localhost:9876", "topic": "T"}


def options(*, streaming: bool = True, without: tuple[str, ...] = (), **given: str) -> SourceOptions:
    named = {name.replace("__", "."): value for name, value in given.items()}
    return source_options({k: v for k, v in (BASE | named).items() if k not in without}, streaming=streaming)


def test_option_names_do_not_depend_on_case() -> None:
    found = source_options({"NAMESERVER": "h:1", "tOpIc": "T", "StartingOffsets": "Earliest"}, streaming=True)
    assert found.topic == ("T",)
    assert found.starting_offsets is not None
    assert found.starting_offsets.at(MessageQueue("T", "b", 0)) == ("earliest",)


@pytest.mark.parametrize(
    ("given_options", "field", "value"),
    [
        ({"nameServer": " a:1 ; b:2 "}, "name_server", ("a:1", "b:2")),
        ({"nameServer": "[::1]:9876"}, "name_server", ("[::1]:9876",)),
        ({"maxTriggerDelay": "15m"}, "max_trigger_delay_ms", 900_000),
        ({"maxTriggerDelay": "250"}, "max_trigger_delay_ms", 250),
        ({"maxBytesPerTrigger": "4m"}, "max_bytes_per_trigger", 4 << 20),
        ({"maxRecordsPerTrigger": "7"}, "max_offsets_per_trigger", 7),
        ({"failOnDataLoss": "FALSE"}, "fail_on_data_loss", False),
        ({"dataLossAction": "skip"}, "data_loss_action", dict.fromkeys(KINDS, "skip")),
        ({"dataLossAction": "trimmed=skip,deleted=fail"}, "data_loss_action", {"trimmed": "skip", "deleted": "fail"}),
        ({"suggestScope": "task+driver"}, "suggest_scope", frozenset({"task", "driver"})),
        ({"commitFailurePolicy": "warn"}, "commit_failures_max", -1),
        ({"commitFailurePolicy": "fail"}, "commit_failures_max", 1),
        ({"commitFailurePolicy": "failAfter:3"}, "commit_failures_max", 3),
        ({"consumerGroup": "g"}, "group", "g"),
        ({"kafka__group__id": "g"}, "group", "g"),
        ({"filterType": "tag", "view": "Messages", "alignQueuesByTimestamp": "false"}, "group", None),
        ({"subExpression": "A || B"}, "expression", TagExpression.parse("A||B")),
        ({"subExpression": "*"}, "expression", TagExpression.parse("*")),
        ({"subExpression": "A > 5", "filterType": "sql92"}, "expression", SqlExpression("A > 5")),
        ({"subExpression": "*", "filterType": "SQL92"}, "expression", TagExpression.parse("*")),
        ({"grpc__keepalive_time_ms": "5000"}, "channel", {"grpc.keepalive_time_ms": 5000}),
    ],
)
def test_values_are_read_as_written(given_options: dict[str, str], field: str, value: object) -> None:
    assert getattr(options(**given_options), field) == value


def test_static_brokers_name_every_member_of_a_pair() -> None:
    found = options(without=("nameServer",), brokers="broker-a=0@h:1,1@h:2;broker-b=0@[::1]:3")
    assert found.brokers == {"broker-a": {0: "h:1", 1: "h:2"}, "broker-b": {0: "[::1]:3"}}


@pytest.mark.parametrize(
    ("given_options", "says"),
    [
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"startngOffsets": "latest"}, "did you mean startingOffsets?"),
        ({"nameServer": ""}, "host:port"),
        ({"nameServer": "somewhere"}, "'somewhere' is not host:port"),
        ({"nameServer": "h:0"}, "not host:port"),
        ({"nameServer": "h:70000"}, "not host:port"),
        ({"brokers": "broker-a=0@h:1"}, "nameServer and brokers exclude each other"),
        ({"subscribe": "U"}, "topic and subscribe exclude each other"),
        ({"assign": '{"T":{"b":[0]}}'}, "topic and assign exclude each other"),
        ({"group": "a", "consumerGroup": "b"}, "mean the same and contradict"),
        ({"maxOffsetsPerTrigger": "0"}, "between 1 and"),
        ({"maxOffsetsPerTrigger": "-1"}, "between 1 and"),
        ({"maxOffsetsPerTrigger": "1e18"}, "whole number"),
        ({"maxOffsetsPerTrigger": "abc"}, "whole number"),
        ({"maxOffsetsPerTrigger": "9223372036854775808"}, "between 1 and"),
        ({"maxOffsetsPerTrigger": "\uff11\uff12"}, "whole number"),
        ({"failOnDataLoss": "yes"}, "must be true or false"),
        ({"readFrom": "nobody"}, "must be one of suggested, master, slave, masterOnly"),
        ({"maxTriggerDelay": "5 parsecs"}, "such as 500, 30s or 15m"),
        ({"commitFailurePolicy": "failAfter:0"}, "failAfter:n"),
        ({"commitOffsets": "onTrigger"}, "needs group"),
        ({"startingOffsets": "committed"}, "needs group"),
        ({"newQueueOffsets": "committed,earliest"}, "needs group"),
        ({"startingOffsets": "soon"}, "'soon'"),
        ({"startingOffsets": "latest,earliest"}, "'latest,earliest'"),
        ({"startingOffsets": "{"}, "is not JSON"),
        ({"startingOffsets": '{"T":{"b":{"0":1}},"T":{"b":{"0":2}}}'}, "names something twice"),
        ({"startingOffsets": '{"T":{"b":{"0":-3}}}'}, "-3"),
        ({"startingOffsets": '{"T":{"b":{"0":1.5}}}'}, "whole number"),
        ({"startingOffsets": '{"T":{"b":{"0":NaN}}}'}, "whole number"),
        ({"startingOffsets": '{"T":{"b":{"0":{"x":1}}}}'}, "too deep"),
        ({"startingOffsets": '{"T":{"b":{"first":1}}}'}, "queue id"),
        ({"startingOffsets": '{"T":' * 100_000}, "nested too deeply"),
        ({"endingOffsets": "earliest"}, "latest or an offset"),
        ({"startingTimestamp": "yesterday"}, "ISO text"),
        ({"startingTimestamp": "20260131"}, "2026-01-31T00:00:00Z or 20260131 ms after 1970, 1970-01-01T05:37:40.131"),
        ({"startingTimestamp": "202601311230"}, "is that 2026-01-31T12:30:00Z or"),
        ({"startingTimestamp": "20260131123059"}, "is that 2026-01-31T12:30:59Z or"),
        ({"endingTimestamp": "1769817600"}, "is that 2026-01-31T00:00:00Z or"),  # seconds
        ({"startingOffsetsByTimestamp": '{"T":20260131}'}, "is that 2026-01-31T00:00:00Z or"),
        ({"endingOffsetsByTimestamp": '{"T":"20260131"}'}, "is that 2026-01-31T00:00:00Z or"),
        ({"kafka__bootstrap__servers": "h:9092"}, "nameServer=host:port"),
        ({"kafka__max__poll__records": "5"}, "not supported yet"),
        ({"startingOffsetsByTimestamp": "5"}, "must be JSON"),
        ({"dataLossAction": "lost=skip"}, "must be one of trimmed, truncated, deleted"),
        ({"dataLossAction": "trimmed=skip,trimmed=fail"}, "names trimmed twice"),
        ({"subExpression": "A ||"}, "tags joined by"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "above maxOffsetsPerTrigger"),
        ({"includeHeaders": "true"}, "schemaProfile=kafka"),
        ({"subscribePattern": "T.*"}, "topic and subscribePattern exclude"),
        ({"filterType": "SQL92", "subExpression": "a >"}, "ends where more is expected"),
        ({"filterType": "regex"}, "TAG, SQL92"),
        ({"group": "a b"}, "group 'a b': 1 to 255 letters"),
        ({"topic": "a/b"}, "only letters, digits"),
        ({"subscribe": "T,a b"}, "topic 'a b': only letters, digits"),
        ({"provider": "rocketsim", "option.topic": "T"}, "tables (CREATE TABLE … USING rocketsim) are not supported"),
        (
            {"startingTimestamp": "2026-01-31T13:00:00+01:00", "endingTimestamp": "2026-01-31T11:59:59Z"},
            "startingTimestamp=2026-01-31T12:00:00.000Z is after endingTimestamp=2026-01-31T11:59:59.000Z",
        ),
        ({"assign": '{"T":[0,1]}'}, "a queue has a broker name and an id"),
        # for later
        ({"alignQueuesByTimestamp": "true"}, "not supported yet"),
        ({"maxTimeRangePerTrigger": "1h"}, "not supported yet"),
        ({"slowQueueAdjustment": "true"}, "not supported yet"),
        ({"view": "lag"}, "not supported yet"),
        ({"tls__ca": "file"}, "did you mean tlsCa"),
        ({"tlsCa": "file"}, "tlsCa: these need tls=true"),
        ({"tls": "true", "tlsKey": "file"}, "tlsCert and tlsKey are a pair"),
        ({"heartbeatIntervalMs": "30000"}, "not supported yet"),
    ],
)
def test_a_refusal_says_what_is_wrong(given_options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError) as refusal:
        options(**given_options)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("read", "given_options", "says"),
    [
        (source_options, {"nameServr": "h:1", "topic": "T"}, "unknown option nameservr; did you mean nameServer?"),
        (source_options, {"nameServer": "h:1", "topics": "T"}, "unknown option topics; did you mean topic?"),
        (sink_options, {"nameSrver": "h:1", "topic": "T"}, "unknown option namesrver; did you mean nameServer?"),
        (sink_options, {"nameServer": "h:1", "topic": "T", "group": "a/b"}, "group 'a/b': 1 to 255 letters"),
        (sink_options, {"nameServer": "h:1", "topic": "TBW102"}, "system topics: it cannot be sent to"),
        (source_options, {}, "no options were given, not even nameServer: tables (CREATE TABLE"),
        (sink_options, {}, "no options were given, not even nameServer: tables (CREATE TABLE"),
    ],
)
def test_what_is_wrong_is_said_before_what_is_missing_and_before_any_task(
    read: Any, given_options: dict[str, str], says: str
) -> None:
    with pytest.raises(OptionError) as refusal:
        read(given_options, streaming=False) if read is source_options else read(given_options)
    assert says in str(refusal.value)


def test_an_unlike_name_is_not_suggested() -> None:
    assert nearest("price", ["body", "topic", "tags"]) == "" and "tags" in nearest("tag", ["body", "topic", "tags"])


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="not a regular expression"):
        options(without=("topic",), subscribePattern="[")


def test_something_has_to_say_what_to_read_and_where() -> None:
    with pytest.raises(OptionError, match="topic, subscribe, subscribePattern or assign"):
        options(without=("topic",))
    with pytest.raises(OptionError, match="nameServer=host:port"):
        options(without=("nameServer",))


def test_unknown_options_pass_only_when_asked_for() -> None:
    with pytest.raises(OptionError, match="unknown option"):
        options(colour="blue")
    assert options(colour="blue", strictOptions="false").topic == ("T",)


def test_limits_are_for_streams() -> None:
    assert options(maxOffsetsPerTrigger="5").max_offsets_per_trigger == 5
    with pytest.raises(OptionError, match="for streams only"):
        options(streaming=False, maxOffsetsPerTrigger="5")


@pytest.mark.parametrize(
    ("written", "queue", "found"),
    [
        ("earliest", MessageQueue("T", "a", 0), ("earliest",)),
        ("-1", MessageQueue("T", "a", 0), ("latest",)),
        ("17", MessageQueue("T", "a", 0), (17,)),
        ("committed, latest", MessageQueue("T", "a", 0), ("committed", "latest")),
        ('{"T":"earliest"}', MessageQueue("T", "a", 3), ("earliest",)),
        ('{"T":"earliest"}', MessageQueue("U", "a", 3), None),
        ('{"T":{"a":-2}}', MessageQueue("T", "a", 3), ("earliest",)),
        ('{"T":{"a":{"3":23,"4":"committed,earliest"}}}', MessageQueue("T", "a", 3), (23,)),
        ('{"T":{"a":{"3":23,"*":"latest"}}}', MessageQueue("T", "a", 9), ("latest",)),
        ('{"T":{"a":{"3":23},"*":5}}', MessageQueue("T", "b", 0), (5,)),
        ('{"T":{"a":{"3":23},"*":5}}', MessageQueue("T", "a", 0), (5,)),
        ('{"*":7,"T":{"a":{"3":23}}}', MessageQueue("U", "z", 1), (7,)),
        ('{"T":{"a":{"03":23}}}', MessageQueue("T", "a", 3), (23,)),
    ],
)
def test_positions_apply_at_any_level_the_most_specific_first(written: str, queue: MessageQueue, found: object) -> None:
    assert positions(written).at(queue) == found


def test_what_is_named_has_to_exist() -> None:
    there = [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]
    positions('{"T":{"a":{"1":5}}}').refuse_strangers(there, "startingOffsets")
    for written in ('{"T":{"a":{"2":5}}}', '{"T":{"b":5}}', '{"t":5}'):
        with pytest.raises(OptionError, match="not among the queues"):
            positions(written).refuse_strangers(there, "startingOffsets")


def test_timestamps_are_milliseconds_or_iso_text() -> None:
    found = options(
        startingOffsetsByTimestamp='{"T":{"a":{"0":1500,"1":"1970-01-01T00:00:02Z","*":"1970-01-01T00:00:03"}}}'
    )
    assert found.starting_offsets_by_timestamp is not None
    assert [found.starting_offsets_by_timestamp.at(MessageQueue("T", "a", q)) for q in (0, 1, 2)] == [1500, 2000, 3000]


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("0", 0),
        ("1769817600000", 1_769_817_600_000),
        ("20260132", 20_260_132),  # no day
        ("10000101", 10_000_101),
        ("2026-01-31", 1_769_817_600_000),
        ("20260131T000000Z", 1_769_817_600_000),
        ("1970-01-01T05:37:40.131+00:00", 20_260_131),
        ("999999999", 999_999_999),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_a_timestamp_that_can_only_be_one_moment_is_taken(written: str, ms: int) -> None:
    found = options(startingTimestamp=written).starting_timestamp
    assert found is not None and found.at(MessageQueue("T", "a", 0)) == ms


def test_assign_lists_queue_ids() -> None:
    assert assignment('{"T":{"a":[0,1],"b":[0]}}') == {
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
        MessageQueue("T", "b", 0),
    }
    for wrong in (
        "{}",
        "[]",
        '{"T":[0]}',
        '{"T":{"a":[]}}',
        '{"T":{"a":[-1]}}',
        '{"T":{"a":[true]}}',
        '{"T":{"a":["0"]}}',
    ):
        with pytest.raises(OptionError):
            assignment(wrong)


names = st.text("abcXYZ-_%", min_size=1, max_size=8)
leaves = st.one_of(
    st.integers(-2, 2**63 - 1), st.sampled_from(["earliest", "latest", "committed", "committed,earliest"])
)
queue_maps = st.dictionaries(
    names,
    st.dictionaries(
        names,
        st.dictionaries(st.integers(0, 2**31 - 1).map(str), leaves, min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=4,
)


@given(queue_maps)
def test_every_queue_gets_what_was_written_for_it(written: dict[str, dict[str, dict[str, object]]]) -> None:
    found = positions(json.dumps(written))
    words = {-2: ("earliest",), -1: ("latest",)}
    for topic, brokers in written.items():
        for broker_name, queues in brokers.items():
            for queue_id, leaf in queues.items():
                expected = tuple(leaf.split(",")) if isinstance(leaf, str) else words.get(leaf, (leaf,))  # type: ignore[call-overload]
                assert found.at(MessageQueue(topic, broker_name, int(queue_id))) == expected


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_and_never_anything_else(text: str) -> None:
    for name in (
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "assign",
        "maxTriggerDelay",
        "dataLossAction",
        "brokers",
    ):
        try:
            found = source_options(BASE | {name: text, "group": "g"}, streaming=True)
        except OptionError:
            continue
        assert isinstance(found, SourceOptions)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
        max_leaves=8,
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        assert isinstance(positions(json.dumps(value)), PerQueue)
    except OptionError:
        pass


def test_the_sink_refuses_what_it_cannot_do() -> None:
    assert sink_options({"nameServer": "h:1", "topic": "T", "checkpointLocation": "/c"}).mode == "atLeastOnce"
    assert sink_options({"nameServer": "h:1", "sinkMode": "IDEMPOTENT", "sinkName": "out"}).mode == "idempotent"
    for wrong, says in (
        ({"sinkMode": "transactional"}, "not supported yet"),
        ({"sinkMode": "exactlyOnce"}, "must be one of atLeastOnce, idempotent"),
        # The sink does not guess what identifies a row.
        ({"sinkMode": "idempotent"}, "needs to know what makes a row the same row"),
        ({"sinkMode": "idempotent", "idVersion": "1"}, "idColumns=a,b"),
        ({"sinkMode": "idempotent", "sinkName": "out", "idVersion": "2"}, "between 0 and 1"),
        ({"sinkMode": "idempotent", "sinkName": "out", "idVersion": "0"}, "knows neither idColumns nor sinkName"),
        ({"sinkName": "out"}, "sinkName belongs to sinkMode=idempotent"),
        ({"idColumns": "a"}, "idColumns belongs to sinkMode=idempotent"),
        ({"idVersion": "0"}, "idVersion belongs to sinkMode=idempotent"),
        ({"sendBatchSiz": "5"}, "did you mean sendBatchSize?"),
        ({"maxInflight": "0"}, "between 1 and"),
    ):
        with pytest.raises(OptionError) as refusal:
            sink_options({"nameServer": "h:1"} | wrong)
        assert says in str(refusal.value)


def test_source_and_sink_let_each_others_options_pass_by_any_name() -> None:
    """A table is read and written with the same options."""
    of_sink = {"sendMsgTimeout": "5s", "producerGroup": "p", "unsyncedSendPolicy": "fail", "compressType": "LZ4"}
    of_source = {
        "consumerGroup": "g",
        "kafka.group.id": "g",
        "maxRecordsPerTrigger": "5",
        "startingOffsets": "earliest",
    }
    given = BASE | of_sink | of_source
    source, sink = source_options(given, streaming=True), sink_options(given)
    assert (source.group, source.max_offsets_per_trigger) == ("g", 5)
    assert (sink.group, sink.send_timeout_ms, sink.unsynced_send_policy) == ("p", 5000, "fail")
    every = {*option_names(SourceOptions), *option_names(SinkOptions)}
    for read in (lambda given: source_options(given, streaming=True), sink_options):
        for name in every - {"nameServer", "topic"}:
            try:
                read(BASE | {name: "\0"})
            except OptionError as refusal:  # the value or a contradiction may be refused, but the name is known
                assert "unknown option" not in str(refusal)


def test_the_sink_compresses_as_told() -> None:
    found = sink_options({"nameServer": "h:1"})
    assert (found.compress_over, found.compress_type) == (4096, "ZLIB")
    found = sink_options({"nameServer": "h:1", "compressMsgBodyOverHowMuch": "1m", "compressType": "zstd"})
    assert (found.compress_over, found.compress_type) == (1 << 20, "ZSTD")


def test_options_of_apache_rocketmq_reach_the_connection() -> None:
    given = {"protocol": "Remoting", "addressMap": "10.0.*=host", "maxPullsPerSecond": "50", "registerGroup": "false"}
    found = options(**given).connection
    assert (found.protocol, found.address_map) == ("remoting", "10.0.*=host")
    assert "token" not in repr(options(accessKey="a", secretKey="s", securityToken="token"))
    assert options(accessKey="a", secretKey="s", securityToken="token").connection.security_token == "token"
    assert (found.max_pulls_per_second, found.register_group) == (50, "false")
    sink = sink_options({"nameServer": "h:1", "topic": "T", "protocol": "remoting", "addressMap": "10.0.*=host"})
    assert (sink.connection.protocol, sink.connection.address_map) == ("remoting", "10.0.*=host")
    assert options(namespace="MQ_INST_1").connection.namespace == "MQ_INST_1"
    assert options(namespaceV2="one").connection.namespace_v2 == "one"
    sink = sink_options({"nameServer": "h:1", "topic": "T", "namespace": "MQ_INST_1"})
    assert sink.connection.namespace == "MQ_INST_1"
    wrong = {"protocol": "http", "addressMap": "x", "registerGroup": "maybe", "namespace": "a%b", "namespaceV2": "a.b"}
    for name, value in wrong.items():
        with pytest.raises(OptionError, match=name):
            options(**{name: value})
