"""Forked processes: what their objects hold of threads, locks and connections is the parent's."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

_callbacks: weakref.WeakKeyDictionary[object, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_inherited: list[object] = []
_registered = False


def after_fork(owner: object, callback: Callable[[Any], None]) -> None:
    """Call ``callback(owner)`` in every process that is forked from this one, as long as ``owner`` lives.

    One for each owner. It must not wait or raise.
    """
    global _registered
    _callbacks[owner] = callback
    if not _registered:
        _registered = True
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=_run)


def _run() -> None:
    for owner, callback in list(_callbacks.items()):
        callback(owner)


def leave_to_parent(*objects: object) -> None:
    """Keep these for ever: in this forked process their end would close what is the parent's."""
    _inherited.extend(objects)
