"""RocketMQ's remoting protocol as both sides speak it: frames, their headers, bodies and signatures.  Pure.

`frame` encodes and decodes frames, `loose_json` reads bodies that are almost JSON, `codes` has the protocol's numbers,
`message_batch` and `send_fields` have the parts of a send, and `acl` signs requests.
"""
