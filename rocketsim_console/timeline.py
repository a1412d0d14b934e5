"""Finds out what has happened to the brokers: the events between two pictures of the cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rocketsim_console.picture import Broker, Pair, Picture, slave_of

Weight = Literal["good", "note", "warning", "critical"]

PROMOTION = 10**12  # an epoch's number is promotions * PROMOTION + starts since the last one


@dataclass(frozen=True, slots=True)
class Event:
    """An event of one broker.  `kind` is a word for filters and colours, and `text` a sentence for people."""

    at_ms: int
    kind: str
    weight: Weight
    pair: str
    address: str
    text: str


def events_between(before: Picture, after: Picture) -> list[Event]:
    """Returns the events in the order of the brokers.  The brokers in the console's very first picture do not count as
    events.
    """
    known = before.by_address()
    events: list[Event] = []
    for broker in after.brokers:
        earlier = known.get(broker.address)
        if earlier is None:
            if before.brokers:
                events.append(_event(after, broker, "joined", "note", f"registered as {broker.state}"))
            continue
        events += _changes(before, after, earlier, broker)
    return events


def _changes(before: Picture, after: Picture, earlier: Broker, broker: Broker) -> Iterator[Event]:
    def event(kind: str, weight: Weight, text: str) -> Event:
        return _event(after, broker, kind, weight, text)

    answered, answers = earlier.ha is not None, broker.ha is not None
    if answered and not answers:
        why = "is gone" if broker.state == "away" else "does not answer"
        yield event("gone", "critical" if earlier.state == "master" else "warning", f"the {earlier.state} {why}")
        return
    if not answers:
        return
    if not answered:
        yield event("back", "good", f"answers as {broker.state}, epoch {epoch_words(broker.epoch)}")
    elif earlier.state != broker.state:
        if broker.state == "master":
            yield event("promoted", "good", f"is the master now, epoch {epoch_words(broker.epoch)}")
        else:
            yield event("replaced", "note", "is not the master any more, and follows another one")
    elif broker.epoch > earlier.epoch and broker.state == "master":
        yield event("epoch", "note", f"has begun epoch {epoch_words(broker.epoch)}")
    if answered and broker.state == "master" and earlier.state == "master" and earlier.writable != broker.writable:
        if broker.writable:
            yield event("writable", "good", "takes sends again")
        else:
            reason = broker.status.get("notWritable") or (broker.ha.state if broker.ha is not None else "")
            kind = "fenced" if "fenced" in reason else "read-only"
            yield event(kind, "critical", f"takes no sends: {reason}")
    if earlier.cuts is not None and broker.cuts is not None:
        for cut in broker.cuts:
            if cut not in earlier.cuts:
                what = f"has cut {cut.size} bytes off its log, from offset {cut.offset} on"
                yield event("cut", "warning", f"{what}, and keeps them in rocketsim/diverged")
    if broker.state == "slave":
        yield from _following(before, after, earlier, broker)


def _following(before: Picture, after: Picture, earlier: Broker, broker: Broker) -> Iterator[Event]:
    was, now = _in_sync(before, earlier), _in_sync(after, broker)
    if was is False and now:
        yield _event(after, broker, "in sync", "good", "is in sync with its master again")
    elif was and now is False:
        yield _event(after, broker, "late", "warning", "is not in sync with its master")


def _in_sync(picture: Picture, broker: Broker) -> bool | None:
    """Returns True if the slave is in sync with its master.  Returns None if no master answers, or if the broker is the
    master.
    """
    master = next((pair.master for pair in picture.pairs() if pair.name == broker.name), None)
    if master is None or master.address == broker.address:
        return None
    slave = slave_of(master, broker)
    return slave is not None and slave.in_sync


def epochs_of(pair: Pair) -> list[dict[str, Any]]:
    """Returns the epochs in the master's log, the newest first, each with the log offsets at which it begins and ends.
    If no master answers, the epochs come from the answering broker that knows the newest epoch.
    """
    answering = [broker for broker in pair.brokers if broker.ha is not None]
    teller = pair.master or max(answering, key=lambda broker: broker.epoch, default=None)
    if teller is None or teller.ha is None:
        return []
    epochs = teller.ha.epochs
    ends = [*(later.start_offset for later in epochs[1:]), teller.ha.commit_log_max_offset]
    rows = [
        {
            "pair": pair.name,
            "told_by": teller.address,
            "epoch": epoch_words(one.epoch),
            "promotion": one.epoch % PROMOTION == 0 < one.epoch,
            "start": one.start_offset,
            "end": max(end, one.start_offset),
        }
        for one, end in zip(epochs, ends, strict=False)
    ]
    return rows[::-1]


def cuts_of(picture: Picture) -> list[dict[str, Any]]:
    """Returns what brokers have cut off their logs and kept, the newest first."""
    rows = [
        {"pair": broker.name, "address": broker.address, "at_ms": cut.timestamp, "start": cut.offset, "bytes": cut.size}
        for broker in picture.brokers
        for cut in broker.cuts or ()
    ]
    return sorted(rows, key=lambda row: (-row["at_ms"], row["address"]))


def epoch_words(epoch: int) -> str:
    """Formats an epoch's number for people: 2000000000005 is the fifth start after the second promotion."""
    promotions, starts = divmod(epoch, PROMOTION)
    return f"{epoch} (start {starts} after promotion {promotions})" if promotions else str(epoch)


def _event(picture: Picture, broker: Broker, kind: str, weight: Weight, text: str) -> Event:
    return Event(picture.at_ms, kind, weight, broker.name, broker.address, text)
