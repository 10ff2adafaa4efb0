"""Writing files such that they are there, whole, after a crash or a power cut; or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(path: str | Path) -> None:
    """Make what was linked, renamed or removed in a directory last."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Make a directory and its parents, durably; one that is there is fine."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not path.is_dir():
            raise
    sync_directory(path.parent)


def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def link_open_file(fd: int, target: Path) -> None:
    """Give the very file that ``fd`` has open another name, atomically. Raises FileExistsError and OSError.

    By way of /proc, since a link by the file's own name could take another file that came there meanwhile.
    """
    directory = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a directory given Python uses linkat, which follows the link in /proc; else it would link that.
        os.link(str(fd), target, src_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
