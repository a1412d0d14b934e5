"""Metadata as messages of a bounded size, whatever the number of groups and queues.  Pure."""

from collections.abc import Iterator

from rocketsim_proto.metadata_pb2 import Metadata

OFFSETS_A_MESSAGE = 10_000  # a topic's and a group's names have 255 bytes at most, so this is 6 MB at most


def parts(metadata: Metadata) -> Iterator[Metadata]:
    """To be sent in this order, each to be merged by itself.  The first has all but the further offsets; only the
    last has the sequence: a receiver that has it has all parts."""
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
