"""Pause and resume: keep queues, kinds, sources of messages or everything from being claimed, over the whole fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.names import check_name
from scheduler.model.pauses import ALL, KIND, QUEUE, SOURCE
from scheduler.model.times import to_datetime
from scheduler.operations.desk import Desk
from scheduler.store import pauses
from scheduler.store.db.tx import Tx
from scheduler.store.pauses import Pause as Pause
from scheduler.store.pauses import of_everything as of_everything
from scheduler.store.read.kinds import unknown_kind
from scheduler.store.read.names import unknown_queue


class PauseInfo(msgspec.Struct, frozen=True):
    """A pause: ``scope`` all, queue or kind; ``name`` of the queue or kind, "" for all; since when, by whom and why."""

    scope: str
    name: str
    since: datetime
    by: str | None
    reason: str | None


class PauseScope(NamedTuple):
    """What is paused: everything, or a queue, kind or source of this name."""

    scope: str
    name: str

    def __str__(self) -> str:
        return "everything" if self.scope == ALL else f"{self.scope} {self.name}"


class PauseResult(NamedTuple):
    """``changed``: whether each scope was otherwise before; ``left``: all pauses now; ``unknown``: names that no worker
    and no task has, each a sentence."""

    changed: dict[PauseScope, bool]
    left: list[PauseInfo]
    unknown: list[str]


def scopes(
    *,
    queues: Iterable[str] = (),
    kinds: Iterable[str] = (),
    sources: Iterable[str] = (),
    everything: bool = False,
) -> list[PauseScope]:
    """Check the names of what is to be paused or resumed. Raises ConfigError, also if there is none."""
    found = [
        PauseScope(scope, check_name(scope, name))
        for scope, names in ((QUEUE, queues), (KIND, kinds), (SOURCE, sources))
        for name in dict.fromkeys(names)
    ]
    if everything:
        found.append(PauseScope(ALL, ""))
    if not found:
        raise ConfigError("say what: a queue, a kind, a source, or all")
    return found


def pause(desk: Desk, chosen: Sequence[PauseScope]) -> PauseResult:
    """Let no worker claim tasks of these, until :func:`resume`. Effective within a second; running tasks go on.

    A scope that is paused already keeps its beginning, and takes the new reason. Raises StoreUnavailableError.
    """
    return _change(desk, chosen, pauses.pause)


def resume(desk: Desk, chosen: Sequence[PauseScope]) -> PauseResult:
    """End these pauses. To resume everything leaves the pauses of single queues and kinds. Raises as :func:`pause`."""
    return _change(desk, chosen, pauses.resume)


def in_effect(desk: Desk) -> list[PauseInfo]:
    """All pauses, the oldest first. Raises StoreUnavailableError."""
    with desk.read() as tx:
        return _infos(tx)


def pause_info(one: pauses.Pause) -> PauseInfo:
    """A stored pause as doors show it."""
    return PauseInfo(one.scope, one.name, to_datetime(one.at), one.actor, one.reason)


def _infos(tx: Tx) -> list[PauseInfo]:
    return [pause_info(one) for one in pauses.records(tx)]


def _change(desk: Desk, chosen: Sequence[PauseScope], change: Callable[[Tx, str, str], bool]) -> PauseResult:
    def work(tx: Tx) -> PauseResult:
        changed = {one: change(tx, *one) for one in chosen}
        checks = {KIND: unknown_kind, QUEUE: unknown_queue}
        unknown = [checks[one.scope](tx, one.name) for one in chosen if one.scope in checks]
        return PauseResult(changed, _infos(tx), [text for text in unknown if text is not None])

    return desk.write(work)
