"""The calls of RocketMQ 5's official clients, gRPC `apache.rocketmq.v2`, on a port of their own over the same broker.

    front ─► port ─► servicer ─► topic_routes (asks name servers) ─► route_answers
                              ─► sends ─► accumulator ─► the put path;  sent_message, message_rules, recent_sends
                              ─► receiving (over broker_service.pop) ─► delivered_message, unsent
                              ─► transaction_calls (over broker_service.transactions)
                              ─► wire/clients, settings
    status, names: known to all of them

Every call, refused ones included, is answered with gRPC's OK and a status in the response: the clients require it.
"""
