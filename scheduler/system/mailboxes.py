"""Mailboxes: sockets with names in one directory, by which processes of a machine wake each other.

On Linux they are Unix datagram sockets, reached through the directory's descriptor, since their paths may have 107
bytes at most. Without /proc that is not possible. Then a mailbox is a port of the loopback, which a file of its name
contains; that file is locked as long as its process lives.
"""

from __future__ import annotations

import os
import socket
import sys
import weakref
from contextlib import suppress
from pathlib import Path

from scheduler.system import LINUX, files, locks, sockets

_HERE = "127.0.0.1"


class Mailboxes:
    """The mailboxes of a directory. Raises OSError if it cannot be used."""

    def __init__(self, directory: Path) -> None:
        self._directory = os.path.abspath(directory)
        self._dirfd: int | None = None
        if files.OPENS_DIRECTORIES:
            self._dirfd = os.open(directory, os.O_RDONLY | files.DIRECTORY | files.CLOEXEC)
        self.unix = LINUX and os.path.exists(f"/proc/self/fd/{self._dirfd}")
        """Whether they are Unix sockets."""
        self._sender = self._socket()
        self._sender.setblocking(False)
        self._ports: dict[str, int] = {}  # of the loopback, by name
        self._held: dict[str, int] = {}  # descriptors of files that are locked, by name
        self._closer = weakref.finalize(self, _close, self._dirfd, self._sender)
        self._closer.atexit = False  # an engine's thread may send until the process ends

    def _socket(self) -> socket.socket:
        return sockets.unix(socket.SOCK_DGRAM) if self.unix else socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def _at(self, name: str) -> str:
        """What ``os`` is given for a name, beside the directory's descriptor."""
        return name if self._dirfd is not None else os.path.join(self._directory, name)

    def changed_at(self) -> int:
        """When names came or went last, in nanoseconds; 0 if that is not known. Raises OSError."""
        return 0 if self._dirfd is None else os.fstat(self._dirfd).st_mtime_ns

    def names(self) -> list[str]:
        """The files that are there. Raises OSError."""
        self._ports.clear()
        return os.listdir(self._directory if self._dirfd is None else self._dirfd)

    def bind(self, name: str) -> socket.socket:
        """Make a mailbox of this name, from which to receive. Raises OSError."""
        made = self._socket()
        try:
            made.settimeout(None)  # whatever a program has made the default
            if self.unix:
                made.bind(f"/proc/self/fd/{self._dirfd}/{name}")
                os.chmod(name, 0o660, dir_fd=self._dirfd)
            else:
                made.bind((_HERE, 0))
                self.hold(name, str(made.getsockname()[1]).encode())
        except BaseException:
            made.close()
            raise
        return made

    def send(self, name: str, message: bytes) -> None:
        """Put a message into a mailbox.

        Raises OSError: BlockingIOError for one that is full, ConnectionRefusedError for one whose process has ended.
        """
        if self.unix:
            self._sender.sendto(message, f"/proc/self/fd/{self._dirfd}/{name}")
            return
        if name not in self._ports:
            self._ports[name] = self._port(name)
        self._sender.sendto(message, (_HERE, self._ports[name]))

    def _port(self, name: str) -> int:
        fd = os.open(self._at(name), os.O_RDWR | files.CLOEXEC, dir_fd=self._dirfd)
        try:
            port = os.read(fd, 16)
            with suppress(BlockingIOError):
                if name not in self._held:
                    locks.lock(fd)
                    raise ConnectionRefusedError(f"the process of {name} has ended")
        finally:
            os.close(fd)
        if not port.isdigit():
            raise BlockingIOError(f"{name} is being made")
        return int(port)

    def hold(self, name: str, text: bytes = b"") -> None:
        """Make a file that is locked until :meth:`release`, or until this process ends. Raises OSError."""
        # Named only once it is locked: who met it free would take us for dead. Windows renames no open file; there
        # nobody can remove one, and only a file that could be removed was a dead process's.
        draft = name if sys.platform == "win32" else f"{name}.new"
        fd = os.open(self._at(draft), os.O_RDWR | os.O_CREAT | files.CLOEXEC, 0o660, dir_fd=self._dirfd)
        try:
            locks.lock(fd)
            if text:
                os.lseek(fd, 0, os.SEEK_SET)
                os.write(fd, text)
            if draft != name:
                os.rename(self._at(draft), self._at(name), src_dir_fd=self._dirfd, dst_dir_fd=self._dirfd)
        except BaseException:
            os.close(fd)
            raise
        self._held[name] = fd

    def remove_dead(self, name: str, beside: str) -> bool:
        """Remove a file of :meth:`hold` if its process has ended, and another one first, if that is there.

        Returns whether the process has ended. Raises OSError.
        """
        fd = os.open(self._at(name), os.O_RDWR | files.CLOEXEC, dir_fd=self._dirfd)
        try:
            locks.lock(fd)
            # Removed under its lock; a second one that opened the old file finds a worker already dead.
            if sys.platform != "win32":
                self.release(beside, name)
        finally:
            os.close(fd)
        if sys.platform == "win32":
            self.remove(name)  # fails while its process has it open
            self.release(beside)
        return True

    def remove(self, name: str) -> None:
        """Remove a file. Raises OSError."""
        os.unlink(self._at(name), dir_fd=self._dirfd)

    def release(self, *names: str) -> None:
        """Remove files, if they are there, and let the locks go that this process has of them."""
        for name in names:
            fd = self._held.pop(name, -1)
            if sys.platform == "win32" and fd >= 0:
                os.close(fd)
            with suppress(OSError):
                self.remove(name)
            if sys.platform != "win32" and fd >= 0:
                os.close(fd)

    def close(self) -> None:
        """Send nothing more. Raises nothing."""
        self._closer()
        self._dirfd = -1  # its number is soon another file's


def _close(dirfd: int | None, sender: socket.socket) -> None:
    sender.close()
    if dirfd is not None:
        os.close(dirfd)
