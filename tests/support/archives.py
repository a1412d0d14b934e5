"""Unpacks archives."""

import tarfile
from pathlib import Path


def unpack(archive: Path, directory: Path) -> Path:
    """Unpacks a tar file into `directory`, and returns the directory."""
    # Filters exist since Python 3.11.4, and 3.12 warns without one.
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as members:
        members.extractall(directory, **safely)
    return directory
