"""Unpacks the archives in tests/data."""

import tarfile
from pathlib import Path


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack a tar file into `directory`, and return that."""
    # Filters exist since 3.11.4; Python 3.12 and newer warn without one.
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as members:
        members.extractall(directory, **safely)
    return directory
