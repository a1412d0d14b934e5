"""JsonFile reads and writes a small JSON file so that it survives a crash.

JsonFile is used for the broker's `config/*.json` and the store's `rocketsim/*.json`.  RocketMQ writes integer keys
without quotes, which is not valid JSON.  JsonFile reads keys with and without quotes, and writes them with quotes,
which RocketMQ can read as well.  As in RocketMQ, the previous content stays beside the file in FILE.bak.

The last member of a file in `rocketsim/` is `crc32`, a checksum of all bytes before it, so that a changed bit is
noticed.  RocketMQ's files and those that older versions wrote have no checksum.
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

# A string is matched first and left unchanged, so that text inside a string is never taken for a key.
_STRING_OR_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)', re.DOTALL)
_CHECKSUM = '\n\t"crc32":'


def loads(text: str) -> Any:
    """Parses JSON, also with unquoted integer keys; raises ValueError if the text is anything else."""

    def quoted(match: re.Match[str]) -> str:
        return f'{match[1]}"{match[2]}"{match[3]}' if match[2] is not None else match[0]

    return json.loads(_STRING_OR_BARE_KEY.sub(quoted, text))


class TextTable(dict[str, str]):
    """A table inside a JSON object.

    The values of a TextTable are JSON text already, made by `entry_text`, so that a change of one entry does not encode
    thousands of others again.
    """


def dumps(value: Any) -> str:
    """Encodes a value in RocketMQ's layout: indented by tabs, names sorted.  An object may have TextTable members."""
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
    """Returns True if the file is written with a checksum."""
    return path.parent.name == "rocketsim"


def encoded(path: Path, value: dict[str, Any]) -> bytes:
    """Returns the bytes of the file: the value as JSON, with a last member `crc32` if the file is in `rocketsim/`."""
    text = dumps(value)
    if not _is_ours(path):
        return text.encode()
    content = text.removesuffix("}").rstrip("\n")
    content += "," if value else ""
    return f'{content}{_CHECKSUM}"{zlib.crc32(content.encode()):08x}"\n}}'.encode()


def decoded(path: Path, data: bytes) -> Any:
    """Returns the content without its checksum; raises ValueError if it is no JSON or the checksum does not match."""
    value = loads(data.decode())
    if not _is_ours(path) or not isinstance(value, dict) or (checksum := value.pop("crc32", None)) is None:
        return value
    content = data[: data.rfind(_CHECKSUM.encode())]
    if checksum != f"{zlib.crc32(content):08x}":
        raise ValueError("the crc32 does not match the content. If somebody has edited the file, remove the crc32")
    return value


class JsonFile:
    """One file with one JSON object in it."""

    def __init__(self, path: Path, files: Files | None = None, *, private: bool = False) -> None:
        """`private` is for a file with secrets and rights.  Only the owner may read a private file or its backup.

        If a private file cannot be used, its backup is not read instead, since the backup may have a right that the
        last change removed.
        """
        self.path = path
        self._private = private
        self.backup = path.with_name(path.name + ".bak")
        self._files = files or Files()
        self._saved: tuple[int, int] | None = None  # size and CRC-32 of what `save` has written

    def load(self) -> dict[str, Any] | None:
        """Reads the file, or its backup if the file is missing or damaged; None if neither exists.

        Raises StoreCorrupt if the file and its backup are damaged, or if a private file is missing or damaged.  The
        returned content is on disk, so a power loss does not undo it.
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
                            f"{why}: its backup {path} lacks the last change, which may have removed a right; check "
                            f"the backup and rename it to {self.path.name}, or move both files away to start without"
                        )
                    logger.warning("%s: the content before the last change is used, from %s", why, path)
                return value
            damage.append(f"{path} is not a JSON object")
        if damage:
            raise StoreCorrupt("; ".join(damage) + ": repair it, or move it away to start without it")
        return None

    def save(self, value: dict[str, Any]) -> None:
        """Writes the new content and syncs it.  A crash leaves either the old or the new content."""
        try:
            previous = self._files.read(self.path)
        except FileNotFoundError:
            self._files.make_directory(self.path.parent)
        else:
            # A damaged file must never replace a good backup.  Decoding a large file is slow, so a file that this
            # object wrote itself is recognised by its checksum.
            if _size_and_crc(previous) == self._saved or _is_object(self.path, previous):
                self._files.write_atomically(self.backup, previous, private=self._private)
        data = encoded(self.path, value)
        self._files.write_atomically(self.path, data, private=self._private)
        self._saved = _size_and_crc(data)

    def __str__(self) -> str:
        return str(self.path)

    def remove(self) -> None:
        self._files.remove(self.backup)  # the backup goes first, since `load` would use it instead of a missing file
        self._files.remove(self.path)


def _size_and_crc(data: bytes) -> tuple[int, int]:
    return len(data), zlib.crc32(data)


def _is_object(path: Path, data: bytes) -> bool:
    try:
        return isinstance(decoded(path, data), dict)
    except ValueError:
        return False
