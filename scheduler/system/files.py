"""Files: the flags of opening them, what makes them last, and their rights."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

# Flags that a system lacks are 0. Where there is O_BINARY, a file without it would have its line ends changed.
CLOEXEC: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
NO_TERMINAL: int = getattr(os, "O_NOCTTY", 0)
AS_PLACE: int = getattr(os, "O_PATH", os.O_RDONLY)  # only to come back to it
OPENS_DIRECTORIES = os.open in os.supports_dir_fd  # whether files can be reached by a descriptor of their directory
NO_DIRECTORIES = "needs Linux or macOS: Windows opens no directories, which is what keeps others from exchanging one"

# Of a connection to SQLite, so that its own syncs are such as :func:`sync`.
FULL_SYNC: tuple[str, ...] = ("fullfsync=ON", "checkpoint_fullfsync=ON") if sys.platform == "darwin" else ()

if sys.platform == "darwin":
    import fcntl

    def sync(fd: int) -> None:
        """Have the disk keep what was written: fsync(2) of macOS leaves it in the disk's own memory."""
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError:  # a file system that does not know it, such as a network's
            os.fsync(fd)

else:

    def sync(fd: int) -> None:
        """Have the disk keep what was written."""
        os.fsync(fd)


def sync_directory(path: str | Path) -> None:
    """Sync a directory, so that links, renames and removals in it survive a crash. Windows has that by itself."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY | DIRECTORY | CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def allocate(fd: int, size: int) -> None:
    """Let a new file have so many bytes, all of them on the disk. Raises OSError."""
    if sys.platform == "linux":
        os.posix_fallocate(fd, 0, size)
    else:
        os.write(fd, bytes(size))


def place_of(fd: int) -> str:
    """A path that leads to what a descriptor has open. Raises OSError."""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(fd, 50, bytes(1024)).rstrip(b"\0"))  # F_GETPATH
    return f"/proc/self/fd/{fd}"


def open_again(fd: int, flags: int) -> int:
    """Open what a descriptor has open as another description, with flags of its own. Raises OSError.

    Elsewhere than on Linux all descriptors of a file share O_NONBLOCK.
    """
    if sys.platform != "linux":
        raise OSError(errno.EINVAL, "a descriptor cannot be opened again")
    return os.open(f"/proc/self/fd/{fd}", flags | NO_TERMINAL | CLOEXEC)


def is_absolute(path: str) -> bool:
    """Whether a path counts from nowhere else: on Windows with a drive, or on the drive that is there."""
    return path.startswith("/") or os.path.isabs(path)


def free_space(path: str | Path) -> int:
    """The bytes that this user may still fill on the disk of a directory. Raises OSError."""
    if sys.platform == "win32":
        import shutil

        return shutil.disk_usage(path).free
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def of_this_run() -> Path:
    """A directory for files that need not outlast this run of the machine."""
    if sys.platform != "linux":
        import tempfile

        return Path(tempfile.gettempdir())
    return Path("/dev/shm")


def set_mode(fd: int, path: str | Path, mode: int) -> None:
    """Give an open file these rights. Windows knows "read-only" alone."""
    if sys.platform == "win32":
        os.chmod(path, mode)
    else:
        os.fchmod(fd, mode)


def for_others(path: str | Path) -> int:
    """The rights that any user of the machine has to a file. Raises OSError; 0 on Windows, whose modes say nothing."""
    return 0 if sys.platform == "win32" else stat.S_IMODE(os.stat(path).st_mode) & stat.S_IRWXO
