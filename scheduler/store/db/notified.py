"""When a process of this machine last notified of new tasks: a page of memory that all of them share.

A notification wakes the workers for all that is stored by then, so one serves all callers of a stream. The page is a
hint. What is missing there costs a notification more, and what is wrong there one less, hence a poll.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
from contextlib import suppress

from scheduler.system import files, processes

_SLOT = struct.Struct("=Q")  # a moment in microseconds, and the mark of its store
_SLOTS = 512
_SIZE = _SLOTS * _SLOT.size
_MARK_BITS = 16


class Notified:
    """The moments of one store. ``store``: what no other has, or None: this process shares them with no other."""

    def __init__(self, store: str | None) -> None:
        number = int.from_bytes(hashlib.sha256((store or "").encode()).digest()[:4], "big")
        self._mark, slot = number >> _MARK_BITS, number % _SLOTS
        self._offset = slot * _SLOT.size
        self._page: mmap.mmap | bytearray = _shared_page() if store is not None else bytearray(_SIZE)

    def tell(self, moment: float) -> None:
        """Now (by the monotonic clock) all workers are notified."""
        _SLOT.pack_into(self._page, self._offset, int(moment * 1e6) << _MARK_BITS | self._mark)

    def last(self) -> float:
        """When they last were, by the monotonic clock; minus infinity: nobody says."""
        (value,) = _SLOT.unpack_from(self._page, self._offset)
        moment, mark = divmod(value, 1 << _MARK_BITS)
        return moment / 1e6 if moment and mark == self._mark else float("-inf")

    def close(self) -> None:
        """Share no more: the file is closed."""
        self._page = bytearray(_SIZE)


def _shared_page() -> mmap.mmap | bytearray:
    """Of the processes of this user; of this one alone where there can be no such file."""
    user = processes.user_id()
    with suppress(OSError):
        path = files.of_this_run() / f"schedd-{user}.notified"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | files.CLOEXEC | files.NOFOLLOW, 0o600)
        try:
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_uid == user:
                files.allocate(fd, _SIZE)  # or a full disk would end the process at a note
                return mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
    return bytearray(_SIZE)
