"""Access control, in RocketMQ 5's terms: it finds out which user makes a call, and if that user may make it.

- `policies` has users, resources and policies.
- `signature` finds the user of a call from its headers.
- `rights` says what each call needs.
- `decision` decides by a user's policies if an action is allowed.
- `gate` uses the other modules to decide about each call.  `interceptor` asks the gate before every call of a gRPC
  server, and `remoting` before every request of RocketMQ's remoting protocol.
"""
