"""Writes files so that after a crash or a power cut they are there, whole, or not at all."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from scheduler.system import files
from scheduler.system.files import sync_directory

DRAFT_MAX_AGE = 24 * 3600.0  # seconds after which an unfinished file of a crashed writer is removed


class Staging:
    """A directory in which files are written before they get their names, on the same filesystem."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def name(self) -> Path:
        """A free name. Removes what crashed writers left there long ago."""
        make_directory(self.directory)
        for entry in os.scandir(self.directory):
            with suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime < time.time() - DRAFT_MAX_AGE:
                    os.unlink(entry.path)
        return self.directory / secrets.token_hex(16)

    def write(self, target: Path, data: bytes, mode: int = 0o644) -> None:
        """Write a file, whole or not at all; one that is there is replaced."""
        staged = self.name()
        try:
            fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | files.CLOEXEC, mode)
            try:
                write_all(fd, data)
                files.sync(fd)
            finally:
                os.close(fd)
            self.publish(staged, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(staged)

    def publish(self, staged: Path, target: Path) -> None:
        """Give a file that is synced its name."""
        make_directory(target.parent)
        os.replace(staged, target)
        sync_directory(target.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None


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
    directory = os.open("/proc/self/fd", os.O_RDONLY | files.DIRECTORY | files.CLOEXEC)
    try:
        # With a directory given Python uses linkat, which follows the link in /proc; else it would link that.
        os.link(str(fd), target, src_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
