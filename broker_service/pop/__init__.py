"""Consumption that the broker keeps: pop, ack, change of the invisible time, retries, dead letters, transactions.

`Consumption` (`consumption.py`) is what servicers call; `model.py` has what goes in and comes out:

    pop(Pop) -> Popped                            deliveries, each with its receipt handle and deadline
    ack(group, topic, handles) -> [Settled]       ends these deliveries for good
    change_invisible(ChangeInvisible) -> Changed  a new deadline, also "in 0 ms"; the handle stays the same
    forward_to_dlq(group, topic, handle) -> Settled
    give_back(group, topic, handles, begun)       what could not be sent to the client
    client_gone(client_id)                        deliveries that are renewed for it go back at once
    rights_changed(may)                           likewise of clients that may not consume them any more
    transactions                                  half messages, commit, rollback (`transactions.py`)

Expected outcomes are values (nothing to deliver, a handle that is not valid any more).  Refusals are RocketSimErrors:
no such topic, no permission, a broker that is a slave, fenced, stopping or busy.  All calls belong on the event loop.

A delivery that is not acknowledged before its deadline goes to the retry topic `%RETRY%<group>+<topic>`,
which a pop of the topic reads, too; after `retryMaxTimes` + 1 deliveries it goes to `%DLQ%<group>`.
"""
