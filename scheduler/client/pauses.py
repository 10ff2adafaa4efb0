"""``jobs.pause`` and ``jobs.resume``: keep a queue, a kind or everything from being claimed, over the whole fleet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from scheduler.client.threads import in_thread
from scheduler.errors import ConfigError
from scheduler.model.actor import acting_as
from scheduler.model.names import check_name
from scheduler.model.pauses import ALL, KIND, QUEUE, SOURCE
from scheduler.model.times import to_datetime
from scheduler.store import pauses as store
from scheduler.store.db.database import Database


class PauseInfo(msgspec.Struct, frozen=True):
    """A pause: ``scope`` all, queue or kind; ``name`` of the queue or kind, "" for all; since when, by whom and why."""

    scope: str
    name: str
    since: datetime
    by: str | None
    reason: str | None


def pause_info(one: store.Pause) -> PauseInfo:
    """A stored pause as programs see it."""
    return PauseInfo(one.scope, one.name, to_datetime(one.at), one.actor, one.reason)


class PauseOperations:
    """The part of the Scheduler that pauses and resumes. Needs ``database``, ``threads`` and ``_notify_of_pauses``."""

    database: Database

    def _notify_of_pauses(self) -> None:
        raise NotImplementedError

    def pause(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        source: str | None = None,
        all: bool = False,  # the name is part of the interface
        reason: str | None = None,
        by: str | None = None,
    ) -> bool:
        """Let no worker of the fleet claim tasks of a queue, of a kind, or any task, until :meth:`resume`.

        ``source``: nothing is received from this one. Takes effect within a second. What runs goes on, schedules go on
        making tasks, and what was claimed and has not begun goes back without using an attempt. ``reason`` and ``by``
        are shown by ``schedctl status``, ``show`` and the audit. Returns False if it was paused already. Raises
        ConfigError unless exactly one of ``queue``, ``kind``, ``source`` and ``all`` is given; StoreUnavailableError.
        """
        scope, name = check_scope(queue, kind, all, source)
        with acting_as(by, reason=reason):
            fresh = self.database.change(lambda tx: store.pause(tx, scope, name))
        self._notify_of_pauses()
        return fresh

    def resume(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        source: str | None = None,
        all: bool = False,  # the name is part of the interface
        reason: str | None = None,
        by: str | None = None,
    ) -> bool:
        """End the pause of a queue, of a kind, or of all; ``all`` leaves pauses of single queues and kinds as they are.

        Returns False if there was none. Raises as :meth:`pause`.
        """
        scope, name = check_scope(queue, kind, all, source)
        with acting_as(by, reason=reason):
            ended = self.database.change(lambda tx: store.resume(tx, scope, name))
        self._notify_of_pauses()
        return ended

    def pauses(self) -> Sequence[PauseInfo]:
        """What is paused, the oldest pause first. Raises StoreUnavailableError."""
        with self.database.read() as tx:
            return [pause_info(one) for one in store.records(tx)]

    pause_async = in_thread(pause)
    resume_async = in_thread(resume)
    pauses_async = in_thread(pauses)


def check_scope(queue: str | None, kind: str | None, everything: bool, source: str | None = None) -> tuple[str, str]:
    """(scope, name) of a pause. Raises ConfigError."""
    given = [one for one in (queue, kind, source, everything or None) if one is not None]
    if len(given) != 1:
        raise ConfigError("say exactly one of queue, kind, source and all")
    if queue is not None:
        return QUEUE, check_name("queue", queue)
    if kind is not None:
        return KIND, check_name("kind", kind)
    if source is not None:
        return SOURCE, check_name("source", source)
    return ALL, ""
