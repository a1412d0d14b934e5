"""Splits metadata into messages of limited size, whatever the number of groups and queues.  Pure."""

from collections.abc import Iterator

from rocketsim_proto.metadata_pb2 import Metadata

OFFSETS_A_MESSAGE = 10_000  # 6 MB at most, since the names of a topic and a group have 255 bytes at most


def parts(metadata: Metadata) -> Iterator[Metadata]:
    """Yields the parts in the order in which they must be sent.  The receiver merges each part as it arrives.

    The first part has everything but the offsets that do not fit into it, and the other parts have these offsets.  Only
    the last part has the sequence, so a receiver that has the sequence has all parts.
    """
    entries = metadata.consumer_offsets
    if len(entries) <= OFFSETS_A_MESSAGE:
        yield metadata
        return
    for first in range(0, len(entries), OFFSETS_A_MESSAGE):
        part = Metadata(
            topics_version=metadata.topics_version, groups_version=metadata.groups_version, epoch=metadata.epoch
        )
        if metadata.HasField("users_version"):
            part.users_version.CopyFrom(metadata.users_version)
            part.acls_version.CopyFrom(metadata.acls_version)
        if first == 0:
            part.CopyFrom(metadata)
            part.ClearField("consumer_offsets")
        part.consumer_offsets.extend(entries[first : first + OFFSETS_A_MESSAGE])
        part.sequence = metadata.sequence if first + OFFSETS_A_MESSAGE >= len(entries) else 0
        yield part
