"""Consumption that the broker keeps: pop, ack, change of the invisible time, retries and dead letters.

`Consumption` (`consumption.py`) puts the parts together.  Servicers call it; `model.py` has what goes in and comes out:

    pop(Pop) -> Popped                            deliveries, each with its receipt handle and deadline
    ack(group, topic, handles) -> [Settled]       ends these deliveries for good
    change_invisible(ChangeInvisible) -> Changed  a new deadline, also "in 0 ms"; the handle stays the same
    forward_to_dlq(group, topic, handle) -> Settled
    give_back(group, topic, handles, begun)       what could not be sent to the client
    client_gone(client_id)                        deliveries that are renewed for it go back at once
    rights_changed(may)                           likewise of clients that may not consume them any more
    end_polls(group, topic, client_id)            pops of the client that are held are answered now

Expected outcomes are values (nothing to deliver, a handle that is not valid any more).  Refusals are RocketSimErrors:
no such topic, no permission, a broker that is a slave, fenced, stopping or busy.  All calls belong on the event loop.

A delivery that is not acknowledged before its deadline goes to the retry topic `%RETRY%<group>+<topic>`,
which a pop of the topic reads, too; after `retryMaxTimes` + 1 deliveries it goes to `%DLQ%<group>`.

    consumption ─► popping ─► finder (reads queues) ─► picker (in order), selection (filters)
                           ─► places (which queues), polls (who waits for a message)
                ─► settling ─► expiry (deadlines; outcome decides) ─► mover (copies for retry topics and dead letters)
                ─► deletions, clean_stop
                   all of them ─► state/writer.py
"""
