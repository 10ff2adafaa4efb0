"""Tells objects that their process was forked: the threads, locks and connections that they hold are the parent's."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that holds threads, locks or connections."""

    def after_fork(self) -> None:
        """Let go of what is the parent's. Called in the forked process; must not wait or raise."""
        ...


_objects: weakref.WeakSet[Forkable] = weakref.WeakSet()
_registered = False


def after_fork(one: Forkable) -> None:
    """Call ``one.after_fork()`` in every process that is forked from this one, as long as ``one`` lives."""
    global _registered
    _objects.add(one)
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_run)


def _run() -> None:
    for one in list(_objects):
        one.after_fork()
