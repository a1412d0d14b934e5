"""Pure functions that make the settings that the broker sends to a client on its Telemetry stream.

RocketMQ 5's clients need all settings that are made here.  Without a back-off the Java client fails, and without
`metric` the Python client fails.  The clients for Go and Node wait for settings forever.
"""

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration
from rocketmq_v2 import definition_pb2 as pb

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.retry_policy import retry_times_ms
from broker_service.wire.v2.message_rules import milliseconds
from broker_service.wire.v2.status import Refused

PRODUCER_ATTEMPTS = 3
RECEIVE_BATCH_SIZE = 32
LONG_POLLING = Duration(seconds=20)
LITE_SUBSCRIPTION_QUOTA = 2000
MAX_LITE_TOPIC_SIZE = 64
MAX_TOPICS = 10_000

_LITE = (pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER)

# The back-off between a producer's attempts.  Java's producer accepts only an exponential back-off.
_SEND_AGAIN = pb.ExponentialBackoff(initial=Duration(nanos=10_000_000), max=Duration(seconds=1), multiplier=2)


def reply_to(asked: pb.Settings, group: SubscriptionGroup, max_body_size: int) -> pb.Settings:
    """Returns the settings for a client that has sent `asked`, and that is a producer or a consumer of `group`."""
    reply = pb.Settings(
        client_type=asked.client_type,
        access_point=asked.access_point,
        request_timeout=asked.request_timeout,
        user_agent=asked.user_agent,
        metric=pb.Metric(on=False),
    )
    if asked.WhichOneof("pub_sub") == "publishing":
        reply.backoff_policy.max_attempts = asked.backoff_policy.max_attempts or PRODUCER_ATTEMPTS
        reply.backoff_policy.exponential_backoff.CopyFrom(_SEND_AGAIN)
        reply.publishing.topics.extend(asked.publishing.topics)
        reply.publishing.max_body_size = max_body_size
        reply.publishing.validate_message_type = True
        return reply
    reply.backoff_policy.max_attempts = group.max_attempts
    # An exponential policy is sent as a list, too, because Python's client knows only lists.  Node's client knows only
    # exponential policies, and takes the seconds of an exponential policy for milliseconds.  When Node's client gets a
    # list, it gives messages back without a delay, and `pop/settling.py` then uses the group's back-off.
    times = map(_duration, retry_times_ms(group.group_retry_policy))
    reply.backoff_policy.customized_backoff.next.extend(times)
    subscription = asked.subscription
    reply.subscription.CopyFrom(
        pb.Subscription(
            group=subscription.group,
            subscriptions=subscription.subscriptions,
            fifo=group.consume_message_orderly,
            receive_batch_size=RECEIVE_BATCH_SIZE,
            long_polling_timeout=LONG_POLLING,
            lite_subscription_quota=LITE_SUBSCRIPTION_QUOTA,
            max_lite_topic_size=MAX_LITE_TOPIC_SIZE,
        )
    )
    return reply


def _duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def check_settings(asked: pb.Settings) -> None:
    """Raises Refused for a client that cannot be served.  Names of topics and groups are checked elsewhere.

    A client of lite topics is refused here, because it would otherwise start, and then consume the ordinary topic to
    which its lite topics belong.
    """
    if asked.WhichOneof("pub_sub") is None:
        raise Refused(pb.BAD_REQUEST, "settings are neither of a producer nor of a consumer")
    if asked.client_type in _LITE:
        raise Refused(pb.UNSUPPORTED, "regular group cannot use LITE mode: lite topics are not supported")


def topics_in(asked: pb.Settings) -> Iterable[pb.Resource]:
    """Yields all topics of a client's settings.  Raises Refused if the settings name too many topics."""
    count = len(asked.publishing.topics) + len(asked.subscription.subscriptions)
    if count > MAX_TOPICS:
        raise Refused(pb.BAD_REQUEST, f"the settings have {count} topics; at most {MAX_TOPICS} are allowed")
    yield from asked.publishing.topics
    yield from (entry.topic for entry in asked.subscription.subscriptions)


def poll_s_in(settings: pb.Settings) -> float | None:
    """Returns how many seconds the client's long polls wait; None if the client's settings name no time."""
    if not settings.subscription.HasField("long_polling_timeout"):
        return None
    return milliseconds(settings.subscription.long_polling_timeout) / 1000
