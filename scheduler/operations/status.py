"""The store at a glance, now and at a past instant: what ``status``, ``top`` and the first page tell of."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.store.db.tx import Tx
from scheduler.store.inbox_dead import dead_texts
from scheduler.store.inbox_held import held_texts
from scheduler.store.read import status as read
from scheduler.store.read.by_hand import ByHand as ByHand
from scheduler.store.read.lives import status_at as status_at
from scheduler.store.read.problems import BY_NAME as BY_NAME
from scheduler.store.read.series import Minute as Minute
from scheduler.store.read.series import minutes as minutes
from scheduler.store.read.status import PausedWork as PausedWork
from scheduler.store.read.status import ReadyTask as ReadyTask
from scheduler.store.read.status import Status as Status
from scheduler.store.read.stuck_tasks import HELD_LONG
from scheduler.store.read.stuck_tasks import WAITS_LONG as WAITS_LONG
from scheduler.store.read.top import RunningTask as RunningTask
from scheduler.store.read.top import Top as Top
from scheduler.store.read.top import top as top
from scheduler.store.read.workers import no_worker_reason


class Glance(NamedTuple):
    """``idle``: why no worker takes new work; ``refused``: why the database takes no writes; ``messages``: sentences
    about messages that are held, or could become no task."""

    at: int
    status: Status
    idle: str | None
    refused: str | None
    messages: list[str]


def glance(tx: Tx, most: int = read.MAX_COUNTED) -> Glance:
    """How things stand. ``most``: tasks of each state that are counted."""
    found = read.status(tx, most)
    held = [one for one in found.held if tx.now - one.since <= HELD_LONG]  # others are among the problems
    return Glance(
        tx.now,
        found,
        no_worker_reason(found.workers),
        next((one.text for one in found.stuck if one.name == "writes"), None),
        [*held_texts(held, tx.now), *dead_texts(list(found.dead_messages), tx.now)],
    )
