"""A small disk of a test's own, which it may fill: a tmpfs, so `make faults` has to be root."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from types import TracebackType

MISSING = (
    "this test needs a file system of its own: root, and the right to mount a tmpfs "
    "(both are requirements of `make faults`); mount said: "
)
_PIECE = b"\0" * 65536


class SmallDisk:
    """A tmpfs on ``directory``, while it is open."""

    def __init__(self, directory: Path, mebibytes: int) -> None:
        self.directory = directory
        self._ballast = directory / "ballast"
        options = f"size={mebibytes}m,mode=700"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, MISSING + done.stderr

    def fill(self) -> None:
        """Take all that is left, to the last block."""
        with self._ballast.open("ab", buffering=0) as file:
            for piece in (_PIECE, _PIECE[:4096]):
                try:
                    while file.write(piece):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def left(self) -> int:
        """Bytes that can still be written."""
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        subprocess.run(["umount", "-l", self.directory], check=True)

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()
