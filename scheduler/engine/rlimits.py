"""A kind's limits, set around each of its attempts in a child process.

Only the soft limits are moved, so that the next attempt in the same process has its own. They are counted from what
the process has already: an attempt is not charged for the interpreter, nor for those before it.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler.model.limits import Limits

_PAGE = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def limited(limits: Limits | None) -> Iterator[None]:
    """Limit this process while the body runs; an error that a limit is the reason of says so."""
    if limits is None:
        yield
        return
    before = []
    for which, value in _values(limits):
        soft, hard = resource.getrlimit(which)
        before.append((which, (soft, hard)))
        resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
    try:
        yield
    except BaseException as error:
        _restore(before)
        _say_so(error, limits)
        raise
    finally:
        _restore(before)


def _values(limits: Limits) -> Iterator[tuple[int, int]]:
    if limits.memory is not None:
        yield resource.RLIMIT_AS, memory()[0] + limits.memory
    if limits.cpu is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + limits.cpu
    if limits.files is not None:
        yield resource.RLIMIT_NOFILE, _above(_open_files(), limits.files)


def _open_files() -> set[int]:
    listed = os.listdir("/proc/self/fd")
    return {int(fd) for fd in listed if os.path.lexists(f"/proc/self/fd/{fd}")}  # without the listing's own


def _above(used: set[int], more: int) -> int:
    """The limit (all numbers of open files are below it) that leaves room for so many more."""
    limit = 0
    while more:
        more -= limit not in used
        limit += 1
    return limit


def _restore(before: list[tuple[int, tuple[int, int]]]) -> None:
    for which, values in before:
        resource.setrlimit(which, values)


def _say_so(error: BaseException, limits: Limits) -> None:
    """Name the limit in the text of an error that it is the reason of."""
    if limits.memory is not None and _is_memory(error):
        told = f"the limit of this kind is {Limits(memory=limits.memory)}"
        said = str(error)
        error.args = (f"{said}; {told}" if said else told,)
    elif limits.files is not None and isinstance(error, OSError) and error.errno == 24:
        error.strerror = f"{error.strerror}; the limit of this kind is {Limits(files=limits.files)}"


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == 12)


def memory() -> tuple[int, int]:
    """Bytes of address space, and of memory, that this process has."""
    with open("/proc/self/statm", "rb") as file:
        size, resident, *_ = file.read().split()
    return int(size) * _PAGE, int(resident) * _PAGE
