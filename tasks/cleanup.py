"""TempFileCleanupTask: removes files by their age, inside a directory."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from scheduler import Priority, RetryPolicy, Task
from scheduler.system import files
from scheduler.tasks.files.paths import open_directory
from scheduler.tasks.settings import required

if TYPE_CHECKING:
    from scheduler import Context

HOUR = 3600.0
CANCEL_CHECK_EVERY = 200  # entries between checks for a cancel
MAX_FAILURES_LISTED = 20  # entries in the result
MAX_DEPTH = 100  # directories inside each other; each is open meanwhile
_DIRECTORY = os.O_RDONLY | files.DIRECTORY | files.NOFOLLOW | files.CLOEXEC


class TempFileCleanupTask(
    Task, priority=Priority.LOW, timeout=3600, retry=RetryPolicy(min_wait=60, max_wait=3600, max_attempts=3)
):
    """Removes what was last changed longer ago than that, in a directory and below it.

    directory: an absolute path inside ``[cleanup] roots``; it stays itself. older_than_hours: by the time of the last
    change of the content. Directories that are empty by then, and as old, go too. Links are removed, never followed;
    what is on another file system, and what is no file, directory or link, stays.

    The result is ``{"removed", "bytes", "directories", "kept", "failed": […]}``.

    Permanent failures: a directory that is missing, not allowed, or a link. Transient failures: entries that could not
    be removed; the others are.
    """

    directory: Annotated[str, msgspec.Meta(min_length=1)]
    older_than_hours: Annotated[float, msgspec.Meta(ge=0, le=24 * 366 * 100)]

    def __post_init__(self) -> None:
        if not os.path.isabs(self.directory) or "\0" in self.directory:
            raise ValueError(f"directory must be an absolute path, not {self.directory!r}")

    def run(self, ctx: Context) -> dict[str, Any]:
        roots = required(ctx.settings, "cleanup", "roots", '["/var/tmp/myapp"]')
        directory = open_directory(self.directory, roots, "[cleanup] roots")
        sweep = Sweep(ctx, time.time() - self.older_than_hours * HOUR, os.fstat(directory).st_dev)
        try:
            sweep.directory(directory, "")
        finally:
            os.close(directory)
        found = sweep.result()
        if sweep.failed:
            many = "1 entry" if len(sweep.failed) == 1 else f"{len(sweep.failed)} entries"
            raise OSError(f"{many} could not be removed: {', '.join(sweep.failed[:MAX_FAILURES_LISTED])}")
        return found


class Sweep:
    """One pass over a directory, by descriptors: exchanging a directory for a link leads nowhere."""

    def __init__(self, ctx: Context, before: float, device: int) -> None:
        self._ctx = ctx
        self._before = before
        self._device = device
        self._seen = 0
        self.removed = self.bytes = self.directories = self.kept = 0
        self.failed: list[str] = []

    def result(self) -> dict[str, Any]:
        report = {"removed": self.removed, "bytes": self.bytes, "directories": self.directories, "kept": self.kept}
        return report | {"failed": self.failed[:MAX_FAILURES_LISTED]}

    def directory(self, fd: int, shown: str) -> None:
        """Remove what is old in an open directory."""
        with os.scandir(fd) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            self._seen += 1
            if self._seen % CANCEL_CHECK_EVERY == 0:
                self._ctx.check_cancelled()
            with suppress(FileNotFoundError):  # another process removed it
                try:
                    self._entry(fd, name, f"{shown}{name}")
                except FileNotFoundError:
                    raise
                except OSError as error:
                    self.failed.append(f"{shown}{name} ({error.strerror})")

    def _entry(self, fd: int, name: str, shown: str) -> None:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        old = found.st_mtime < self._before
        if stat.S_ISDIR(found.st_mode):
            if found.st_dev == self._device:
                self._below(fd, name, shown, old)
        elif not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            self.kept += 1
        elif old:
            os.unlink(name, dir_fd=fd)
            self.removed += 1
            self.bytes += found.st_size if found.st_nlink == 1 else 0
        else:
            self.kept += 1

    def _below(self, fd: int, name: str, shown: str, old: bool) -> None:
        if shown.count("/") >= MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"more than {MAX_DEPTH} directories deep")
        inner = os.open(name, _DIRECTORY, dir_fd=fd)
        try:
            self.directory(inner, f"{shown}/")
            with os.scandir(inner) as left:
                empty = next(left, None) is None
        finally:
            os.close(inner)
        if old and empty:
            os.rmdir(name, dir_fd=fd)
            self.directories += 1
