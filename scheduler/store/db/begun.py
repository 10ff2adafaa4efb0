"""Which handlers have begun in a worker, noted where it outlasts the worker's process: in a file mapped into memory.

A task's row says ``running`` only some milliseconds after its handler began. Of a claim that a dead worker left as
``claimed`` this file says whether its handler had begun: then it has used its attempt. A note costs no system call.

The file is locked for as long as its worker lives, so a free lock proves that the process is gone. It tells nothing
on another host, nor after a reboot, which may have lost what was not on the disk yet: without /proc, where nothing
names a start of the machine, what it tells then is true and may be too little.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scheduler.system import WINDOWS, files, locks
from scheduler.system.processes import boot_id

_ENTRY = struct.Struct("=qq")  # task id, claim
_ENTRIES = 16384  # a power of two; far more than have begun and are not marked in the database yet
_HEADER = 64
_SIZE = _HEADER + _ENTRIES * _ENTRY.size
_SUFFIX = ".begun"
_OLD = 86400.0  # seconds after which no worker reads a dead worker's notes


def directories(sockets: Path | None) -> list[Path]:
    """Where such a file may be, best first. ``sockets``: the notifier's directory (SQLite), None on PostgreSQL."""
    found = [sockets] if sockets is not None and sockets.is_dir() else []
    for name in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        found += [Path(part) for part in os.environ.get(name, "").split(":") if part]
    return [*found, files.of_this_run()]


class Begun:
    """The file of one worker. Raises OSError if there can be none in any of ``places``."""

    def __init__(self, places: Iterable[Path], incarnation: str) -> None:
        header = _boot()
        self._fd, self.path = _create(places, f"schedd-{incarnation}{_SUFFIX}")
        self._map = mmap.mmap(self._fd, _SIZE)
        self._map[: len(header)] = header
        entries = memoryview(self._map)[_HEADER:].cast("q")
        number = itertools.count().__next__  # one step of the interpreter: threads note at the same time

        def note(task_id: int, claim: int) -> None:
            at = (number() & (_ENTRIES - 1)) * 2
            entries[at] = task_id
            entries[at + 1] = claim

        self.note: Callable[[int, int], None] = note  # the handler of this claim begins; each handler calls it
        self._closer = weakref.finalize(self, _forget, self._fd, self.path, self._map, entries)
        _sweep(self.path.parent)

    def close(self) -> None:
        """Remove the file: the worker has ended in good order."""
        self._closer()


def begun(path: str) -> set[tuple[int, int]]:
    """(task id, claim) of the handlers that have begun by this file, the latest some thousands; none where it is not
    there, or tells nothing any more."""
    with suppress(OSError), _opened(path) as fd:
        data = os.read(fd, _SIZE)
        if len(data) == _SIZE and data[:_HEADER].rstrip(b"\0") == _boot():
            return {pair for pair in _ENTRY.iter_unpack(data[_HEADER:]) if pair[0]}
    return set()


def is_gone(path: str) -> bool:
    """Whether this file proves that its worker's process has ended."""
    with suppress(OSError), _opened(path) as fd:
        return _is_free(fd)
    return False


def _boot() -> bytes:
    return b"schedd\n" + boot_id()


def _create(places: Iterable[Path], name: str) -> tuple[int, Path]:
    trouble = OSError("there is no place for it")
    for place in places:
        place = place.resolve()
        draft = place / (name if WINDOWS else f"{name}.new")  # Windows renames no open file
        try:
            fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | files.CLOEXEC | files.NOFOLLOW, 0o600)
        except OSError as error:
            trouble = error
            continue
        try:
            files.allocate(fd, _SIZE)  # or a full disk would end the process at a note
            locks.lock(fd)
            if not WINDOWS:
                os.rename(draft, place / name)  # named only once it is locked
            return fd, place / name
        except OSError as error:
            trouble = error
            os.close(fd)
            with suppress(OSError):
                os.unlink(draft)
    raise trouble


@contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | files.CLOEXEC | files.NOFOLLOW | files.NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_free(fd: int) -> bool:
    try:
        locks.lock(fd, shared=True)
    except OSError:
        return False
    return True


def _forget(fd: int, path: Path, mapped: mmap.mmap, entries: memoryview[int]) -> None:
    if WINDOWS:  # removes no file that is open or mapped; elsewhere a handler may still note
        entries.release()
        mapped.close()
        os.close(fd)
    with suppress(OSError):
        os.unlink(path)
    if not WINDOWS:
        os.close(fd)


def _sweep(directory: Path) -> None:
    """Remove files that workers left long ago and no reaper read."""
    with suppress(OSError):
        for path in directory.glob(f"schedd-*{_SUFFIX}*"):
            with suppress(OSError):
                with _opened(path) as fd:
                    over = time.time() - os.fstat(fd).st_mtime > _OLD and _is_free(fd)
                if over:
                    os.unlink(path)
