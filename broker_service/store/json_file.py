"""A small JSON file that survives a crash: the broker's `config/*.json` and the store's own notes.

RocketMQ writes integer keys without quotes, which is not JSON; both forms are read, the strict one is written (RocketMQ
reads that too).  As with RocketMQ, the previous content stays beside it in FILE.bak.

The last member of a file of `rocketsim/` is `crc32`, a checksum of all bytes before it: a changed bit is damage, and
not other content.  Files that older versions wrote do not have it, nor do RocketMQ's.
"""

import json
import logging
import re
import zlib
from pathlib import Path
from typing import Any

from broker_service.errors import StoreCorrupt
from broker_service.store.files import Files

logger = logging.getLogger(__name__)

# A string is matched first and left alone, so that what looks like a key inside one is not touched.
_STRING_OR_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)', re.DOTALL)
_CHECKSUM = '\n\t"crc32":'


def loads(text: str) -> Any:
    """JSON, also with unquoted integer keys; ValueError otherwise."""

    def quoted(match: re.Match[str]) -> str:
        return f'{match[1]}"{match[2]}"{match[3]}' if match[2] is not None else match[0]

    return json.loads(_STRING_OR_BARE_KEY.sub(quoted, text))


class TextTable(dict[str, str]):
    """A member of an object whose entries are text already, from `entry_text`: a table of thousands takes long to make
    anew for each change."""


def dumps(value: Any) -> str:
    """In RocketMQ's layout: indented by tabs, names sorted.  An object may have TextTables as members."""
    tables = {name: one for name, one in value.items() if isinstance(one, TextTable)} if isinstance(value, dict) else {}
    without = {**value, **dict.fromkeys(tables)} if tables else value
    text = json.dumps(without, ensure_ascii=False, indent="\t", separators=(",", ":"), sort_keys=True)
    for name, table in tables.items():
        entries = ",".join(f"\n\t\t{_quoted(key)}:{table[key]}" for key in sorted(table))
        member = f"\n\t{_quoted(name)}:"
        text = text.replace(f"{member}null", f"{member}{{{entries}\n\t}}" if table else f"{member}{{}}", 1)
    return text


def entry_text(value: dict[str, Any]) -> str:
    return dumps(value).replace("\n", "\n\t\t")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_ours(path: Path) -> bool:
    """Whether the file is written with a checksum."""
    return path.parent.name == "rocketsim"


def encoded(path: Path, value: dict[str, Any]) -> bytes:
    """What the file gets: `dumps`, and in `rocketsim/` the CRC-32 of all before it as the last value."""
    text = dumps(value)
    if not _is_ours(path):
        return text.encode()
    content = text.removesuffix("}").rstrip("\n")
    content += "," if value else ""
    return f'{content}{_CHECKSUM}"{zlib.crc32(content.encode()):08x}"\n}}'.encode()


def decoded(path: Path, data: bytes) -> Any:
    """The content without its checksum; ValueError if it is no JSON, or not what was written."""
    value = loads(data.decode())
    if not _is_ours(path) or not isinstance(value, dict) or (said := value.pop("crc32", None)) is None:
        return value
    content = data[: data.rfind(_CHECKSUM.encode())]
    if said != f"{zlib.crc32(content):08x}":
        raise ValueError("its crc32 is not that of its content. If somebody has edited it, remove the crc32")
    return value


class JsonFile:
    """One file with one JSON object in it."""

    def __init__(self, path: Path, files: Files | None = None, *, private: bool = False) -> None:
        """`private`: with secrets and rights in it.  Nobody but its owner may read it or its backup, and the backup is
        not taken in its place: it may have a right that the last change took away.
        """
        self.path = path
        self._private = private
        self.backup = path.with_name(path.name + ".bak")
        self._files = files or Files()
        self._saved: tuple[int, int] | None = None  # size and CRC-32 of what `save` has written

    def load(self) -> dict[str, Any] | None:
        """The content, from the backup if the file is missing or damaged; None if neither was ever written.
        StoreCorrupt if both are damaged.  What is returned is on disk: a power loss does not take it back.
        """
        damage = []
        for path in (self.path, self.backup):
            try:
                value = decoded(path, self._files.read_synced(path))
            except FileNotFoundError:
                continue
            except ValueError as error:
                damage.append(f"{path} is damaged: {error}")
                continue
            if isinstance(value, dict):
                if path is self.backup:
                    why = damage[0] if damage else f"{self.path} is missing"
                    if self._private:
                        raise StoreCorrupt(
                            f"{why}: {path} lacks the last change, which may have taken a right away; look at it and "
                            "put it in its place, or move both away to start without"
                        )
                    logger.warning("%s: the content before the last change is taken, from %s", why, path)
                return value
            damage.append(f"{path} is not a JSON object")
        if damage:
            raise StoreCorrupt("; ".join(damage) + ": repair it, or move it away to start without it")
        return None

    def save(self, value: dict[str, Any]) -> None:
        """On return the new content is on disk; a crash before that leaves the old or the new one."""
        try:
            previous = self._files.read(self.path)
        except FileNotFoundError:
            self._files.make_directory(self.path.parent)
        else:
            # Never replace a good backup by a damaged file.  To decode a large one takes long.
            if _print_of(previous) == self._saved or _is_object(self.path, previous):
                self._files.write_atomically(self.backup, previous, private=self._private)
        data = encoded(self.path, value)
        self._files.write_atomically(self.path, data, private=self._private)
        self._saved = _print_of(data)

    def __str__(self) -> str:
        return str(self.path)

    def remove(self) -> None:
        self._files.remove(self.backup)  # first: `load` would read it in place of a missing file
        self._files.remove(self.path)


def _print_of(data: bytes) -> tuple[int, int]:
    return len(data), zlib.crc32(data)


def _is_object(path: Path, data: bytes) -> bool:
    try:
        return isinstance(decoded(path, data), dict)
    except ValueError:
        return False
