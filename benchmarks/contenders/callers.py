"""Several callers at once, each a process of its own: calls a second of all of them together.

A way is a function of the URL that gives a caller's call; a call says how many tasks, or transactions, it has stored.
Callers are forked before anything is opened, warm up, and begin at once.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

COUNTS = (1, 2, 4, 8, 16)
BATCH = 100
PATIENCE = 120  # seconds until all callers are ready
Call = Callable[[], int]
Way = Callable[[str], Call]
_fork = multiprocessing.get_context("fork")


def _serve(way: Way, url: str, seconds: float, ready: Any, rates: Any) -> None:
    try:
        call = way(url)
        call()
        ready.wait(PATIENCE)
        begun, stored = time.perf_counter(), 0
        while time.perf_counter() < begun + seconds:
            stored += call()
        rates.put(stored / (time.perf_counter() - begun))
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        ready.abort()  # else the others would wait for this one
        raise


@contextmanager
def calling(way: Way, url: str, callers: int, seconds: float) -> Iterator[Any]:
    """So many callers, which go once ``ready`` (a barrier, which this gives) is waited for, too, and end in time."""
    ready, rates = _fork.Barrier(callers + 1), _fork.SimpleQueue()
    made = [_fork.Process(target=_serve, args=(way, url, seconds, ready, rates)) for _ in range(callers)]
    for process in made:
        process.start()
    try:
        yield lambda: (ready.wait(PATIENCE), [rates.get() for _ in made])[1]
    finally:
        for process in made:
            process.join(PATIENCE)


def prepared(prepare: Callable[[str], Any], url: str) -> None:
    """Call this in a process of its own: what it opens is no caller's."""
    process = _fork.Process(target=prepare, args=(url,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0


def together(prepare: Callable[[str], Any], way: Way, callers: int) -> Callable[[str, int], float]:
    def run(url: str, size: int) -> float:
        prepared(prepare, url)
        with calling(way, url, callers, size) as go:
            return sum(go())

    return run


def by_count(prepare: Callable[[str], Any], way: Way) -> dict[str, Callable[[str, int], float]]:
    """Functions by variant: "1 caller", "2 callers" …"""
    return {f"{callers} caller{'s' if callers > 1 else ''}": together(prepare, way, callers) for callers in COUNTS}


def on_slow_disk(prepare: Callable[[str], Any], way: Way) -> dict[str, Callable[[str, int], float]]:
    """PostgreSQL: eight whose own commits take 15 ms and more to flush, as on rotating plates or a network's disk.

    By commit_delay, which is a superuser's (https://www.postgresql.org/docs/current/runtime-config-wal.html).
    """
    slow = "options=-c%20commit_delay%3D15000%20-c%20commit_siblings%3D0"
    return {"8 callers, slow disk": together(prepare, lambda url: way(f"{url}{'&' if '?' in url else '?'}{slow}"), 8)}
