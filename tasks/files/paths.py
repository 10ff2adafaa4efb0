"""Confinement: paths that come with a task must stay inside the directories that the configuration names."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scheduler import PermanentError
from scheduler.system import files


class FileEntry(NamedTuple):
    """A name in an open directory. Close ``directory`` after use."""

    directory: int
    name: str


def directory_within(path: str | None, roots: Sequence[str], setting: str) -> str | None:
    """The real path of a directory inside one of ``roots``; with no roots any directory, as it is given.

    None stands for the first root. Raises PermanentError for a directory that is missing or lies elsewhere.
    """
    if path is None:
        return os.path.realpath(roots[0]) if roots else None
    if not os.path.isdir(path):
        raise PermanentError(f"working directory {path!r} does not exist or is not a directory")
    if not roots:
        return path
    real = os.path.realpath(path)
    if _root_of(real, roots) is None:
        raise _outside(path, roots, setting)
    return real


def open_parent(path: str, roots: Sequence[str], setting: str, forbidden: Iterable[str] = ()) -> FileEntry:
    """The directory that holds ``path``, open, and the last name. Neither traversal nor links lead out.

    Links inside the path are followed as long as they end inside a root. Afterwards the directories are
    opened one by one from the root without following links: exchanging one for a link does not help.
    ``forbidden``: directories that do not count even inside a root. Raises PermanentError for a path that is
    not allowed, FileNotFoundError when its directory does not exist.
    """
    parent, name = os.path.split(path)
    if not os.path.isabs(path) or name in ("", ".", "..") or ".." in parent.split("/"):
        raise PermanentError(f"{path!r} must be the absolute path of a file, without '..'")
    return FileEntry(_open(parent, path, roots, setting, forbidden), name)


def open_directory(path: str, roots: Sequence[str], setting: str) -> int:
    """A descriptor of a directory inside a root, reached as by ``open_parent``.

    Raises PermanentError, which names ``path``, for one that is missing or not allowed.
    """
    if not os.path.isabs(path) or ".." in path.split("/"):
        raise PermanentError(f"{path!r} must be the absolute path of a directory, without '..'")
    try:
        return _open(path, path, roots, setting)
    except FileNotFoundError:
        raise PermanentError(f"there is no directory {path!r}") from None


def _open(path: str, shown: str, roots: Sequence[str], setting: str, forbidden: Iterable[str] = ()) -> int:
    """A descriptor of the directory ``path``; ``shown``: the path that the caller gave, for errors."""
    if not files.OPENS_DIRECTORIES:
        raise PermanentError(f"{setting} {files.NO_DIRECTORIES}")
    real = os.path.realpath(path)
    root = _root_of(real, roots)
    if root is None or _root_of(real, forbidden) is not None:
        raise _outside(shown, roots, setting)
    flags = os.O_RDONLY | files.DIRECTORY | files.NOFOLLOW | files.CLOEXEC
    directory = os.open(root, flags)
    for part in os.path.relpath(real, root).split("/"):
        try:
            following = os.open(part, flags, dir_fd=directory)
        except NotADirectoryError:  # what a link meets as well, here
            raise PermanentError(f"{path!r} is not a directory, or was exchanged for a link") from None
        finally:
            os.close(directory)
        directory = following
    return directory


def open_regular(entry: FileEntry, shown: str) -> int:
    """A descriptor of the regular file, for reading. Raises PermanentError for links, devices, directories.

    Raises FileNotFoundError when there is none.
    """
    flags = os.O_RDONLY | files.NOFOLLOW | files.NONBLOCK | files.CLOEXEC  # a FIFO must not block
    try:
        fd = os.open(entry.name, flags, dir_fd=entry.directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PermanentError(f"{shown!r} is a symbolic link; name the file itself") from None
        if error.errno == errno.ENXIO:
            raise PermanentError(f"{shown!r} is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PermanentError(f"{shown!r} is not a regular file")
    return fd


def _root_of(real: str, roots: Iterable[str]) -> str | None:
    for root in map(os.path.realpath, roots):
        if real == root or real.startswith(root.rstrip("/") + "/"):
            return root
    return None


def _outside(path: str, roots: Sequence[str], setting: str) -> PermanentError:
    return PermanentError(f"{path!r} is not allowed: it must lie inside {' or '.join(roots)} ({setting})")
