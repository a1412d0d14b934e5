"""Reads the store that Apache RocketMQ 5.5.0 wrote, and the dump that RocketMQ's own code made of it."""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

from tests.support.archives import unpack

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def golden_dump() -> list[dict[str, Any]]:
    with gzip.open(GOLDEN / "clean.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def unpack_golden(directory: Path) -> Path:
    """Unpacks the store into `directory`.  The store's messages are dated 2026-11-20, so switch retention off before
    you open the store.
    """
    return unpack(GOLDEN / "clean.tar.xz", directory)


def golden_records() -> tuple[list[dict[str, Any]], bytes]:
    """Returns the dump's messages, and their concatenated record bytes without blank records."""
    dump = golden_dump()
    with tarfile.open(GOLDEN / "clean.tar.xz") as archive:
        names = sorted(name for name in archive.getnames() if "/commitlog/0" in f"/{name}")
        log = b"".join(archive.extractfile(name).read() for name in names)  # type: ignore[union-attr]
    messages = [line for line in dump if line["kind"] == "message"]
    pieces = (log[line["commitLogOffset"] :][: line["storeSize"]] for line in messages)
    return messages, b"".join(pieces)
