"""Access control in RocketMQ 5's terms: who makes a call, and whether that user may.

`model` what users, resources and policies are; `decision` what policies mean; `signature` whose call it is; `rights`
what each call needs; `gate` decides with them, and `interceptor` asks it before every call of a gRPC server.
"""
