"""What all parts use for trouble that repeats, and for forks."""

from __future__ import annotations

import gc
import os

from scheduler import forking
from scheduler.backoff import Backoff, LogOnce


def test_pauses_grow_up_to_the_longest_and_begin_again() -> None:
    backoff = Backoff(0.1, 0.5)
    assert backoff.current == 0.0
    assert [backoff.next() for _ in range(4)] == [0.1, 0.2, 0.4, 0.5]
    assert backoff.current == 0.5
    backoff.reset()
    assert (backoff.current, backoff.next()) == (0.0, 0.1)
    assert Backoff(3.0, 1.0).next() == 1.0, "the longest holds for the first one, too"


def test_trouble_is_new_once_for_each_key_until_it_changes() -> None:
    logged = LogOnce()
    assert [logged.is_new("away"), logged.is_new("away"), logged.is_new("locked"), logged.is_new("away")] == [
        *(True, False, True, True)
    ]
    assert logged.is_new("away", "another job")
    logged.clear()
    assert logged.is_new("away")
    assert not logged.is_new("away", "another job")


class Holder:
    """``seen``: the process in which it heard of a fork."""

    def __init__(self) -> None:
        self.seen = 0
        forking.after_fork(self, Holder._on_fork)

    def _on_fork(self) -> None:
        self.seen = os.getpid()


def test_an_object_hears_of_a_fork_in_the_forked_process_as_long_as_it_lives() -> None:
    holder, gone = Holder(), Holder()
    known = len(forking._callbacks)
    del gone
    gc.collect()
    assert len(forking._callbacks) < known
    child = os.fork()
    if child == 0:
        os._exit(0 if holder.seen == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert holder.seen == 0
