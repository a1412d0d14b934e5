"""Pops: the broker hands out messages of a topic to the consumers of a group, and keeps account of each of them.

A consumer pops a topic, and not one of its queues.  The broker scans each queue from the offset at which the group
continues, and delivers the messages that it finds.  A *place* is a group, a topic and a queue id.

Each *delivery* has a receipt handle and a deadline.  Until the deadline, which is the end of its *invisible time*, no
other consumer gets the message.  The consumer acknowledges the delivery, or moves its deadline.  The broker itself
moves the deadlines of *renewed* deliveries, as long as their client is connected.

A message that is not acknowledged before its deadline is copied to the retry topic `%RETRY%<group>+<topic>`, which pops
of the topic read, too.  After `retryMaxTimes` + 1 deliveries the message is copied to `%DLQ%<group>` instead.

A group that consumes *in order* gets the messages of one message group (FIFO key) one after another.  While a message
of a message group is delivered, the message group is locked: its later messages wait in the broker, and pops skip them.

`Consumption` (`consumption.py`) puts the parts together.  Servicers call these methods of `Consumption` with the values
of `deliveries.py`:

    pop(Pop) -> Popped                            delivers messages
    ack(group, topic, handles) -> [Settled]       ends deliveries for good
    change_invisible(ChangeInvisible) -> Changed  sets a new deadline, which may be now; the handle stays the same
    forward_to_dlq(group, topic, handle) -> Settled
    give_back(group, topic, handles, begun)       undoes deliveries that could not be sent to the client
    client_gone(client_id)                        ends the renewed deliveries of a disconnected client
    rights_changed(may)                           ends the renewed deliveries of clients that lost their rights
    end_polls(group, topic, client_id)            answers the client's pops that wait for a message

Expected outcomes are return values, for example that nothing can be delivered, or that a receipt handle is no longer
valid.  Refusals are raised as RocketSimErrors: the topic does not exist, permission is missing, or the broker is a
slave, fenced, stopping or busy.  All methods of `Consumption` must be called on the event loop.

    consumption ─► popping ─► finder (scans queues) ─► picker (in order), selection (filters)
                           ─► places (which queues), polls (pops that wait for a message)
                ─► settling ─► expiry (deadlines; outcome decides) ─► mover (copies for retry topics and dead letters)
                ─► deletions, clean_stop
                   all of them ─► state/writer.py
"""
