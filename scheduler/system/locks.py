"""Locks of open files, which end with their process: flock(2); on Windows, of a byte far behind the file's end.

And POSIX locks of ranges, which SQLite has.
"""

from __future__ import annotations

import errno
import os
import sys

if sys.platform == "win32":
    import msvcrt

    _BYTE = 2**30  # what is locked cannot be read: no file of ours is that long

    def lock(fd: int, *, shared: bool = False) -> None:
        """Lock an open file. Raises BlockingIOError if another process has; OSError where there are no locks.

        ``shared``: others may have it as well; Windows knows no such locks here.
        """
        os.lseek(fd, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            raise BlockingIOError(errno.EAGAIN, "another process has locked it") from None

    def unlock(fd: int) -> None:
        """Give the lock back."""
        os.lseek(fd, _BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

    def share_range(fd: int, start: int, length: int) -> None:
        """Nothing: nothing forks here."""

else:
    import fcntl

    _ALONE, _SHARED = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB

    def lock(fd: int, *, shared: bool = False) -> None:
        """Lock an open file. Raises BlockingIOError if another process has; OSError where there are no locks.

        ``shared``: others may have it as well; Windows knows no such locks here.
        """
        fcntl.flock(fd, _SHARED if shared else _ALONE)

    def unlock(fd: int) -> None:
        """Give the lock back."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def share_range(fd: int, start: int, length: int) -> None:
        """Take a POSIX lock that others may have as well; it ends when this process closes the file anywhere.

        Raises OSError.
        """
        fcntl.lockf(fd, _SHARED, length, start)
