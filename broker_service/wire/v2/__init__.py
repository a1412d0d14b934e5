"""The calls of RocketMQ 5's official clients, gRPC `apache.rocketmq.v2`, on a port of their own over the same broker.

    port ─► servicer ─► routing (asks name servers) ─► route
                     ─► sends ─► sent_message ─► message_rules
                     ─► receiving (over broker_service.pop) ─► delivered_message
                     ─► clients, settings
    status, names: known to all of them

Every call, refused ones included, is answered with gRPC's OK and a status in the response: the clients require it.
"""
