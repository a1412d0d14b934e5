"""File systems that tests mount: one that loses its power, and one that is small.

Both file systems need root, and the one that loses its power also needs mkfs.ext4 and loop devices.  Tests are skipped
where they lack what their file system needs.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
NO_LOG_FLUSH = (2).to_bytes(4, "little")
SIZE = 256 << 20


class PowerlessDisk:
    """An ext4 on a loop device, which is shut down without its journal, so that unsynced data is lost.  The disk is
    mounted at `mount` while the context lasts.
    """

    def __init__(self, folder: Path) -> None:
        self.mount = folder / "mount"
        self._image = folder / "image"

    def __enter__(self) -> "PowerlessDisk":
        if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
            pytest.skip("a disk that loses its power needs root and mkfs.ext4")
        self.mount.mkdir()
        with self._image.open("wb") as image:
            image.truncate(SIZE)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True)
        self._attach(first=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        subprocess.run(["umount", "-l", str(self.mount)], check=False)

    def _attach(self, *, first: bool = False) -> None:
        done = subprocess.run(
            ["mount", "-o", "loop", str(self._image), str(self.mount)], capture_output=True, text=True
        )
        if done.returncode and first:
            pytest.skip(f"a disk that loses its power needs a loop device: {done.stderr.strip()}")
        assert not done.returncode, done.stderr

    def lose_power(self) -> None:
        """Stops all writes to the disk.  Unwritten data is lost."""
        handle = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(handle)

    def power_is_back(self) -> None:
        """Mounts the disk again.  No process may have an open file on the disk."""
        subprocess.run(["umount", str(self.mount)], check=True)
        self._attach()


FILL = "import sys\nwith open(sys.argv[1], 'wb', 0) as file:\n    while True: file.write(bytes(1 << 16))"


class SmallDisk:
    """A tmpfs of some MiB, which another program can fill.  The disk is mounted at `folder` while the context lasts."""

    def __init__(self, folder: Path, mib: int) -> None:
        self.folder = folder
        self._mib = mib
        self._filler = folder / "another-programs"

    def __enter__(self) -> "SmallDisk":
        self.folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self._mib}m", "tmpfs", str(self.folder)]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no file system may be mounted here: {done.stderr.strip() or os.getuid()}")
        return self

    def __exit__(self, *exc_info: object) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def fill(self) -> None:
        done = subprocess.run([sys.executable, "-c", FILL, self._filler], capture_output=True, check=False)
        assert b"No space left" in done.stderr, done
        with pytest.raises(OSError, match="No space left"):
            (self.folder / "one-more").write_bytes(bytes(1 << 16))
        (self.folder / "one-more").unlink(missing_ok=True)

    def make_room(self) -> None:
        self._filler.unlink()
