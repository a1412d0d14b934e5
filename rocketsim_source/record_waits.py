"""RecordWaits: lets an idle query wait for records at its brokers, so that the query need not poll the brokers."""

from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from rocketsim_client.model import MessageQueue, by_broker

if TYPE_CHECKING:
    from rocketsim_client.cluster import Cluster

# Each call takes a thread of this process, and one of the broker's long polls, whose number is limited (maxLongPolls).
# A query that would need more than MOST_CALLS calls does not wait at brokers.
MOST_CALLS = 16
# The time in seconds that a call waits.  A large CALL_S saves calls, because an idle query uses one call for many
# triggers.  With a small CALL_S, a process that ends without `close` ends sooner.
CALL_S = 10.0

Place = tuple[str, str]  # topic, broker name


class RecordWaits:
    """Makes one waiting call for each topic at each broker name.  A wait ends with the first answer.

    Calls without an answer go on after the wait, until their own time is over.  The next wait uses these open calls, so
    that a broker name never has more than one call for a topic, and no message that comes between two waits is missed.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._calls: dict[Place, Future[bool]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def wait(self, ends: Mapping[MessageQueue, int], hold_s: float) -> bool:
        """Returns True if a queue may have a record at or after its offset in `ends`.  Returns False if no record came
        within `hold_s` seconds, or earlier if a broker cannot wait or does not answer.
        """
        places = {
            (topic, broker_name): {queue.queue_id: ends[queue] for queue in members}
            for topic, broker_name, members in by_broker(ends)
        }
        if not places or len(places) > MOST_CALLS:
            return False
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MOST_CALLS, thread_name_prefix="rocketsim-record-waits")
        self._calls = {place: call for place, call in self._calls.items() if place in places}
        for place, of_place in places.items():
            if place not in self._calls:
                self._calls[place] = self._threads.submit(self._call, place, of_place)
        done, _ = wait(self._calls.values(), hold_s, FIRST_COMPLETED)
        self._calls = {place: call for place, call in self._calls.items() if call not in done}
        return any(call.result() for call in done)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _call(self, place: Place, ends: Mapping[int, int]) -> bool:
        from rocketsim_client.errors import RocketSimError

        topic, broker_name = place
        try:
            return self._cluster.wait_for_records(topic, broker_name, ends, CALL_S)
        except RocketSimError:
            return False  # the query asks for the bounds next, and that call raises the error
