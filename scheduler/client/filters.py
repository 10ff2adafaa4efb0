"""Filters, the keywords by which programs choose tasks for a change of many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, TypedDict


class Filters(TypedDict, total=False):
    """Which tasks; each condition that is given must hold, and one at least is needed.

    ``kind``: one or several. ``status``: states or short names. ``correlation`` also means the task with this id and
    none of its own; ``message_type`` is the kind where none was given. ``payload``: field -> value, ``a.b`` is field b
    of object a. ``older_than`` and ``newer_than``: longer ago than this, or since (seconds or timedelta). Verbs on what
    has ended (retry, rerun, replay, purge) count from the end, others from when a task was stored. ``ids``: one of
    these. ``error_class`` and ``fingerprint``: of the last failure. ``up_to``: no task with a higher id, such as those
    that were stored after a plan was made: its ``up_to``.
    """

    ids: Iterable[int]
    up_to: int
    error_class: str
    fingerprint: str
    kind: str | Iterable[str]
    queue: str
    status: str | Iterable[str]
    key: str
    correlation: str
    subject: str
    message_type: str
    payload: Mapping[str, Any]
    older_than: float | timedelta | str
    newer_than: float | timedelta | str
