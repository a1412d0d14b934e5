"""Yields the metrics of pops, acknowledgements and timers."""

from collections.abc import Iterator

from broker_service.pop.consumption import Consumption
from broker_service.runtime.figures import Figure, counter, gauge


class ConsumptionFigures:
    def __init__(self, consumption: Consumption) -> None:
        self._consumption = consumption

    def figures(self) -> Iterator[Figure]:
        consumption, counts = self._consumption, self._consumption.counts
        yield counter("rocketsim_pops", "Pops answered with messages since the start.", counts.pops)
        yield counter("rocketsim_deliveries", "Messages delivered by pops since the start.", counts.delivered)
        yield counter("rocketsim_acknowledged", "Deliveries acknowledged since the start.", counts.acknowledged)
        yield counter("rocketsim_retries", "Messages put into retry topics since the start.", counts.retried.messages)
        yield counter(
            "rocketsim_dead_letters",
            "Messages put into dead letter topics since the start.",
            counts.dead_letters.messages,
        )
        state = consumption.state
        yield gauge("rocketsim_deliveries_under_way", "Messages delivered and not acknowledged.", state.under_way_count)
        yield gauge(
            "rocketsim_deliveries_under_way_of_one_group",
            "Messages delivered and not acknowledged, in the group that has the most of them.",
            max(state.under_way_of.values(), default=0),
        )
        yield gauge(
            "rocketsim_timers",
            "Messages that wait for their delivery time, and recalls of them.",
            state.timers.count + len(state.timers.unread),
        )
        yield gauge("rocketsim_pops_held", "Pops that wait for a message.", consumption.polls_held)
