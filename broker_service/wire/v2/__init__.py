"""Serves RocketMQ 5's official clients: the gRPC service `apache.rocketmq.v2`, on a port of its own.

    front ─► port ─► servicer ─► topic_routes (asks name servers) ─► route_answers
                              ─► sends ─► accumulator ─► the put path;  sent_message, message_rules, recent_sends
                              ─► receiving (over broker_service.pop) ─► delivered_message, unsent
                              ─► transaction_calls (over broker_service.transactions)
                              ─► wire/clients, settings
    status, names: used by all of them

Every call, even a refused one, ends with gRPC's status OK, because the clients require it.  The status of the call
itself is a field of the response.
"""
