"""Sets a kind's resource limits around each of its attempts in a child process.

Only soft limits change, so that the next attempt in the same process can have its own. They count from what the
process uses already: an attempt does not pay for the interpreter or for earlier attempts.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler.model.limits import ResourceLimits

_PAGE = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def limited(limits: ResourceLimits | None) -> Iterator[None]:
    """Limit this process while the handler runs. An error that a limit causes names the limit."""
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
        _name_limit(error, limits)
        raise
    finally:
        _restore(before)


def _values(limits: ResourceLimits) -> Iterator[tuple[int, int]]:
    if limits.memory is not None:
        yield resource.RLIMIT_AS, memory()[0] + limits.memory
    if limits.cpu is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + limits.cpu
    if limits.files is not None:
        yield resource.RLIMIT_NOFILE, _above(_open_files(), limits.files)


def _open_files() -> set[int]:
    listed = os.listdir("/proc/self/fd")
    return {int(fd) for fd in listed if os.path.lexists(f"/proc/self/fd/{fd}")}  # without the descriptor of the listing


def _above(used: set[int], more: int) -> int:
    """The limit of file descriptors that leaves room for ``more`` beside the used ones."""
    limit = 0
    while more:
        more -= limit not in used
        limit += 1
    return limit


def _restore(before: list[tuple[int, tuple[int, int]]]) -> None:
    for which, values in before:
        resource.setrlimit(which, values)


def _name_limit(error: BaseException, limits: ResourceLimits) -> None:
    """Name the limit in the text of an error that it caused."""
    if limits.memory is not None and _is_memory_error(error):
        limit_text = f"the limit of this kind is {ResourceLimits(memory=limits.memory)}"
        text = str(error)
        error.args = (f"{text}; {limit_text}" if text else limit_text,)
    elif limits.files is not None and isinstance(error, OSError) and error.errno == 24:
        error.strerror = f"{error.strerror}; the limit of this kind is {ResourceLimits(files=limits.files)}"


def _is_memory_error(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == 12)


def memory() -> tuple[int, int]:
    """Bytes of address space and of resident memory of this process."""
    with open("/proc/self/statm", "rb") as file:
        size, resident, *_ = file.read().split()
    return int(size) * _PAGE, int(resident) * _PAGE
