"""Unpacks the archives in tests/data."""

import tarfile
from pathlib import Path


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack a tar file into `directory`, and return that."""
    # A filter is of 3.12, and came to 3.11 with 3.11.4; from 3.12 on there is a warning where none is named.
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as members:
        members.extractall(directory, **safely)
    return directory
