"""The consumer of a group: receives messages, and acknowledges each.  The broker knows which messages are being
processed.

`Poller` asks brokers, `Settler` acknowledges messages and gives them back, and `Renewal` extends deadlines.  The
Poller, the Settler and the Renewal of a consumer share one `Inbox`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator

from rocketsim_client import forks
from rocketsim_client.addresses import Brokers
from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Where
from rocketsim_client.consuming.inbox import Inbox
from rocketsim_client.consuming.options import (
    MAX_INVISIBLE_S,
    ConsumerOptions,
    Topics,
    check_invisible,
    expressions_of,
)
from rocketsim_client.consuming.poller import Poller
from rocketsim_client.consuming.renewal import Renewal
from rocketsim_client.consuming.settler import Settler
from rocketsim_client.errors import (
    ClientClosed,
    InvalidParameter,
    InvalidReceiptHandle,
    RocketSimError,
    TopicNotExist,
)
from rocketsim_client.model import CommitStatus
from rocketsim_client.received_message import ReceivedMessage
from rocketsim_client.tls import File

logger = logging.getLogger(__name__)

BATCH = 32  # messages of one call, as in RocketMQ
RENEW_FOR_S = 3 * 3600.0
MAX_IN_FLIGHT_BYTES = 64 << 20  # the same as in RocketMQ 5's push consumers


class Consumer:
    """Receives messages of topics for a group.  Each message is delivered to one consumer of the group, and is
    delivered again until it is acknowledged.  `close` (or leaving a `with` block) gives back messages that are not
    acknowledged.  Thread-safe.

        with Consumer(name_server, "billing", "TopicTest") as consumer:
            for message in consumer:
                consumer.ack(message)

    `name_server` is `host:port;host:port`, or a Connection, which says where the cluster is and how its servers are
    called.  `name_server` is empty if `brokers` (broker name -> broker id -> `host:port`) is given.  `topics` is a
    topic, several topics, or a mapping topic -> filter.  A filter is tags, as in "TagA || TagB", or an `SqlExpression`,
    which brokers evaluate (their `enablePropertyFilter`).  Durations are in seconds:

    For `invisible_s` (60) after a delivery the broker gives the message to no other consumer.  When half of
    `invisible_s` has passed, this consumer asks the broker for more time.  The consumer asks until `renew_for_s` (three
    hours) after the receipt of the message, and never if `renew_for_s` is 0.  `timeout_s` (3) is the longest that an
    ack or a similar call takes, over all attempts.  A call that receives messages may take `timeout_s` longer than the
    caller wants to wait.  A route is used for `poll_interval_s` (30).

    `access_key` and `secret_key` are the user and password that calls are signed with, for servers with access control.

    `max_in_flight` (1000) limits how many messages may be received and neither acknowledged nor given back, and
    `max_in_flight_bytes` (64 MiB) limits the bytes of their stored records.  A receive waits while `max_in_flight` or
    `max_in_flight_bytes` is reached.  The last answer may exceed `max_in_flight_bytes` by less than 4 MiB and one
    message, so that even a message larger than the limit is received.  The group's settings (`Admin.update_sub_group`)
    say in which order the group consumes, after how many deliveries a message becomes a dead letter, and how long the
    back-off is.  `tls`, `tls_ca`, `tls_cert` and `tls_key` are as for Cluster.
    """

    def __init__(
        self,
        name_server: Where,
        group: str,
        topics: Topics,
        *,
        max_in_flight: int = 1000,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
        invisible_s: float = 60.0,
        renew_for_s: float = RENEW_FOR_S,
        timeout_s: float = 3.0,
        poll_interval_s: float = 30.0,
        brokers: Brokers | None = None,
        access_key: str = "",
        secret_key: str = "",
        tls: bool = False,
        tls_ca: File = None,
        tls_cert: File = None,
        tls_key: File = None,
        cluster: Cluster | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = ConsumerOptions(
            group=group,
            expressions=expressions_of(topics),
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            invisible_s=invisible_s,
            renew_for_s=renew_for_s,
            timeout_s=timeout_s,
        )
        self.group = group
        self._owns_cluster = cluster is None
        self._cluster = cluster or Cluster(
            name_server,
            brokers=brokers,
            timeout_s=timeout_s,
            poll_interval_s=poll_interval_s,
            access_key=access_key,
            secret_key=secret_key,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        self._clock = clock
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        cluster, options, clock = self._cluster, self._options, self._clock
        self._inbox = Inbox(options)
        self._settler = Settler(cluster, options, self._inbox, clock)
        self._renewal = Renewal(self._settler, options, self._inbox, clock)
        self._poller = Poller(cluster, options, self._inbox, self._renewal, clock)

    def forget_parent(self) -> None:
        """Starts without messages, because those that the parent has received belong to the parent."""
        was_closed = self._inbox.closed.is_set()
        self._start()
        if was_closed:
            self._inbox.closed.set()

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self._inbox)

    @property
    def cluster(self) -> Cluster:
        """The cluster that this consumer receives from."""
        return self._cluster

    @property
    def in_flight(self) -> int:
        """The number of messages that are received and neither acknowledged nor given back, including those that no
        caller has taken yet."""
        return len(self._inbox.in_flight)

    @property
    def in_flight_bytes(self) -> int:
        """The bytes of the stored records of the messages in flight."""
        return self._inbox.in_flight.size_bytes

    # --- receiving ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        """Waits for a message.  The iteration ends when the consumer is closed.  Several threads may iterate."""
        try:
            (message,) = self._poller.receive(1, BATCH, None)
        except ClientClosed:
            raise StopIteration from None
        return message

    def poll(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """Returns the next message.  Like an iteration, the call receives up to 32 messages in advance.  Returns None
        if no message came within `timeout_s` (None: no limit).  Errors are those of `receive`."""
        found = self._poller.receive(1, BATCH, timeout_s)
        return found[0] if found else None

    def receive(self, max_messages: int = BATCH, timeout_s: float | None = None) -> list[ReceivedMessage]:
        """Waits up to `timeout_s` (None: no limit) for a message.  Returns at most `max_messages` of the messages that
        have come.  Returns an empty list if no message came.  Brokers that do not answer are asked again.  Raises an
        error if no broker has answered within `timeout_s`."""
        if max_messages < 1:
            raise InvalidParameter(f"receive of {max_messages} messages: ask for at least 1")
        return self._poller.receive(max_messages, min(max_messages, BATCH), timeout_s)

    # --- settling -------------------------------------------------------------------------------------------------

    def ack(
        self, messages: ReceivedMessage | Iterable[ReceivedMessage], *, timeout_s: float | None = None
    ) -> CommitStatus:
        """Acknowledges the messages, so that they are not delivered again.  The status says which brokers have stored
        the ack.  If the messages are on several brokers, the least safe status is returned.  `COMMIT_OK` means that the
        ack is stored as safely as the broker's role asks for.  `SLAVE_NOT_AVAILABLE` means that a SYNC_MASTER had no
        slave.  If the master is lost before a slave has stored the ack, the messages are delivered again.

        Raises InvalidReceiptHandle if the deliveries of some messages were already over, so that these messages are
        delivered again.  An InvalidReceiptHandle does not prevent the acknowledgement of the call's other messages.
        Raises TopicNotExist if the topic was deleted.  Messages of a deleted topic are not delivered again.  After any
        other error it is unknown which messages are acknowledged, and the consumer keeps the messages, so that they can
        be acknowledged again.  An error is also raised if a disk or slave does not confirm the ack before `timeout_s`
        is over.
        """
        self._inbox.check_open()
        return self._settler.ack(_listed(messages), timeout_s)

    def nack(
        self,
        messages: ReceivedMessage | Iterable[ReceivedMessage],
        delay_s: float | None = None,
        *,
        timeout_s: float | None = None,
    ) -> CommitStatus:
        """Gives back messages that could not be processed.  Each message is delivered again after `delay_s` (None: the
        group's back-off).  After the last delivery that the group allows, a message becomes a dead letter.  Status and
        errors are those of `ack`."""
        if delay_s is not None and not 0 <= delay_s <= MAX_INVISIBLE_S:
            raise InvalidParameter(f"delay_s {delay_s}: it must be 0 to {MAX_INVISIBLE_S:g} s")
        self._inbox.check_open()
        return self._settler.nack(_listed(messages), delay_s, timeout_s)

    def extend(
        self,
        messages: ReceivedMessage | Iterable[ReceivedMessage],
        invisible_s: float,
        *,
        timeout_s: float | None = None,
    ) -> CommitStatus:
        """Moves the deadlines of the messages to `invisible_s` from now.  After half of `invisible_s` the consumer
        renews the messages, as long as `renew_for_s` allows.  Status and errors are those of `ack`."""
        check_invisible(invisible_s)
        self._inbox.check_open()
        status = self._settler.extend(_listed(messages), invisible_s, timeout_s)
        self._renewal.sooner.set()
        return status

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends receives, and gives back messages that are not acknowledged, so that other consumers get them at once.
        Takes `timeout_s` at most.  Messages that could not be given back are delivered again after their invisible
        time."""
        until = self._clock() + timeout_s
        with self._inbox.changed:
            if self._inbox.closed.is_set():
                return
            self._inbox.closed.set()
            self._renewal.sooner.set()
            self._inbox.changed.notify_all()
        self._poller.end(until)
        # Half of the time is left for giving back messages.
        self._renewal.join(max(0.0, until - self._clock()) / 2)
        with self._inbox.changed:
            handed_out, waiting = self._inbox.in_flight.take_all()
        try:
            self._settler.give_back(handed_out, waiting, max(0.0, until - self._clock()))
        except (InvalidReceiptHandle, TopicNotExist):
            pass  # the deliveries of these messages had already ended
        except RocketSimError as error:
            logger.warning("%s: messages are delivered again only after their invisible time: %s", self, error)
        if self._owns_cluster:
            self._cluster.close()


def _listed(messages: ReceivedMessage | Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    return [messages] if isinstance(messages, ReceivedMessage) else list(messages)
