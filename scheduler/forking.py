"""Forked processes: what their objects hold of threads, locks and connections is the parent's."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

_callbacks: set[weakref.WeakMethod[Callable[[], None]]] = set()
_inherited: list[object] = []
_registered = False


def after_fork(method: Callable[[], None]) -> None:
    """Call this bound method in every process that is forked from this one, as long as its object lives.

    It must not wait or raise.
    """
    global _registered
    _callbacks.add(weakref.WeakMethod(method, _callbacks.discard))
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_run)


def _run() -> None:
    for reference in _callbacks.copy():
        method = reference()
        if method is not None:
            method()


def leave_to_parent(*objects: object) -> None:
    """Keep these for ever: in this forked process their end would close what is the parent's."""
    _inherited.extend(objects)
