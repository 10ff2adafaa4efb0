"""Sources and sinks, as people read them: what they are doing, what waits, and what went wrong last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scheduler.model.outgoing import sink_kind
from scheduler.model.problem import Side
from scheduler.store import pauses
from scheduler.store.db.tx import Tx
from scheduler.store.read import message_counts
from scheduler.store.read.stuck_workers import transport_troubles
from scheduler.store.read.workers import workers


class SourceStatus(NamedTuple):
    """One source. ``trouble``: what is wrong now, as the workers say; ``last_error``: why the last message that could
    become no task could not, at ``failed_at``. ``held_since``: when the oldest held message came.

    ``at_least``: others may not be counted.
    """

    name: str
    paused: bool
    open: int
    held: int
    held_since: int | None
    dead: int
    last_at: int | None
    trouble: str | None
    last_error: str | None
    failed_at: int | None
    at_least: bool = False


class SinkStatus(NamedTuple):
    """One sink. ``last_error``: of the newest message that waits for another try, or is a dead letter.

    ``at_least``: others may not be counted.
    """

    name: str
    paused: bool
    waiting: int
    retrying: int
    dead: int
    trouble: str | None
    last_error: str | None
    at_least: bool = False


def source_statuses(tx: Tx, names: Iterable[str]) -> list[SourceStatus]:
    """The sources of these names, in their order."""
    wrong = _troubles(tx, "source")
    found = []
    for name in names:
        counts, last = message_counts.of_source(tx, name), message_counts.last_dead(tx, name)
        error, failed_at = (None, None) if last is None else last
        paused, trouble = pauses.of_source(tx, name) is not None, wrong.get(name)
        shown = counts._asdict()
        found.append(
            SourceStatus(name=name, paused=paused, trouble=trouble, last_error=error, failed_at=failed_at, **shown)
        )
    return found


def sink_statuses(tx: Tx, names: Iterable[str]) -> list[SinkStatus]:
    """The sinks of these names, in their order."""
    wrong = _troubles(tx, "sink")
    found = []
    for name in names:
        kind = sink_kind(name)
        paused = pauses.of_kind(tx, kind) is not None
        counts, last = message_counts.of_sink(tx, kind), message_counts.last_error(tx, kind)
        found.append(SinkStatus(name, paused, *counts[:3], wrong.get(name), last, counts.at_least))
    return found


def _troubles(tx: Tx, side: Side) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for (where, name), texts in transport_troubles(workers(tx), tx.now).items():
        if where == side:
            found.setdefault(name, []).extend(texts)
    return {name: "; ".join(texts) for name, texts in found.items()}
