"""Files that executors keep of jobs: written for their own user alone, read from their ends, errors explained."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler.executors.ports import ExecutorError

MAX_TAIL = 1_000_000  # bytes of a file that are read at most


def write_private(path: Path, text: str) -> None:
    """Write a file whole, or not at all; only our own user may read it. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


def tail_of(path: Path, tail: int) -> str | None:
    """The last ``tail`` bytes of a file as text; None if there are none. Raises OSError."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - min(tail, MAX_TAIL)))
            return file.read().decode(errors="replace") or None
    except FileNotFoundError:
        return None


@contextmanager
def explained(place: Path) -> Iterator[None]:
    """Raises ExecutorError for an OSError."""
    try:
        yield
    except OSError as error:
        hint = "; the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise ExecutorError(f"the jobs' files in {place} cannot be used: {error.strerror}{hint}") from error
