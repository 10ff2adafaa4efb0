"""What alerts are made of: bounded reads of dead letters, rates, backlogs, long runs and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model import inbox
from scheduler.model.lanes import kind_of
from scheduler.model.outcome import AttemptEnd
from scheduler.model.rollup import DAY, MINUTE, Measure
from scheduler.model.state import CANCELLED, DEAD, FAILED, FIRST_TERMINAL, SUCCESS
from scheduler.ports import SECOND
from scheduler.store import pauses
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE, HELD, ended_as
from scheduler.store.read.lanes import heads_of_queues
from scheduler.store.read.ready import cause_of, first_of, ready_since
from scheduler.store.read.stats import stats
from scheduler.store.read.workers import Fleet, read_fleet
from scheduler.store.rollups import FINISHED, floor
from scheduler.store.tasks.claim import LaneHead

MAX_DEAD = 10_000  # the newest dead letters that are looked at, and those next to be removed
MAX_GROUPS = 200  # of dead letters by kind and cause
MAX_BACKLOG = 100_000  # tasks of a queue that are counted
MAX_RUNNING = 1000  # attempts that have run for the longest time
_HEADS_PER_QUEUE = 20  # lanes of a queue looked at for its oldest ready task
_ASKED_AFTER, _ASKED_QUEUES = 60 * SECOND, 50  # the oldest task of so many queues is asked for its cause
_MIN_RUNS = 20  # from which on a percentile means something
_HISTORY = 7 * DAY * SECOND  # from which a percentile is taken
_DEAD = ended_as(DEAD)
_DEAD_BEFORE = ended_as(DEAD, before=":before")
_BAD = f"{FAILED}, {DEAD}, {CANCELLED}"


class DeadGroup(NamedTuple):
    """Dead letters of one kind and cause. ``id``: the newest of them."""

    kind: str
    error_class: str | None
    fingerprint: str | None
    number: int
    id: int


class DeadGroups(NamedTuple):
    """The groups of the newest dead letters, the largest first; ``whole``: these are all there are."""

    groups: list[DeadGroup]
    whole: bool


def dead_letters(tx: Tx) -> DeadGroups:
    """Dead letters by kind and cause, among the newest ``MAX_DEAD``."""
    rows = tx.run(
        "SELECT kind, error_class, fingerprint, count(*) AS n, max(id) AS id FROM "
        f"(SELECT kind, error_class, fingerprint, id FROM schedd_tasks WHERE {_DEAD} "
        f"ORDER BY state DESC, finished_at DESC LIMIT {MAX_DEAD}) d "
        f"GROUP BY kind, error_class, fingerprint ORDER BY n DESC, kind LIMIT {MAX_GROUPS + 1}"
    ).fetchall()
    groups = [DeadGroup(r.kind, r.error_class, r.fingerprint, r.n, r.id) for r in rows[:MAX_GROUPS]]
    return DeadGroups(groups, len(rows) <= MAX_GROUPS and sum(r.n for r in rows) < MAX_DEAD)


class Expiring(NamedTuple):
    """Dead letters of one kind that retention removes soon, the first of them at ``first`` (microseconds)."""

    kind: str
    number: int
    first: int


def expiring(tx: Tx, kept: int, within: int) -> list[Expiring]:
    """Dead letters that are removed ``within`` this time, where they are ``kept`` for so long (microseconds)."""
    rows = tx.run(
        "SELECT kind, count(*) AS n, min(finished_at) AS oldest FROM "
        f"(SELECT kind, finished_at FROM schedd_tasks WHERE {_DEAD_BEFORE} "
        "AND failed_ttl IS NULL "  # else its kind says so itself
        f"ORDER BY state, finished_at LIMIT {MAX_DEAD}) d GROUP BY kind ORDER BY kind",
        before=tx.now - kept + within,
    )
    return [Expiring(r.kind, r.n, r.oldest + kept) for r in rows]


class RetryRate(NamedTuple):
    """How many attempts of a kind have ended, and how many of them were retried, or lost with their worker."""

    kind: str
    attempts: int
    retried: int


def retry_rates(tx: Tx, window: int) -> list[RetryRate]:
    """By kind, of the last ``window`` (microseconds), from the rollups: whole minutes."""
    ends = ", ".join(str(end.code) for end in (*FINISHED, AttemptEnd.LOST))
    again = f"{AttemptEnd.RETRIED.code}, {AttemptEnd.LOST.code}"
    rows = tx.run(
        "SELECT kind, sum(number) AS attempts, "
        f"sum(CASE WHEN outcome IN ({again}) THEN number ELSE 0 END) AS retried FROM schedd_rollups "
        f"WHERE span = {MINUTE} AND at >= :since AND measure = {Measure.RUN} AND outcome IN ({ends}) "
        "GROUP BY kind ORDER BY kind",
        since=floor(tx.now - window, MINUTE),
    )
    return [RetryRate(r.kind, int(r.attempts), int(r.retried)) for r in rows]


class QueueBacklog(NamedTuple):
    """Tasks of a queue that only want a worker: their number, and the oldest one's time (microseconds) and kind.

    ``number``: ``MAX_BACKLOG`` for that many or more; -1 where a pause holds a part of it. ``cause``: why the oldest
    one waits, once it has waited for a minute.
    """

    queue: str
    number: int
    since: int
    kind: str
    cause: str = ""


def backlogs(tx: Tx) -> tuple[list[QueueBacklog], set[str]]:
    """The queues with ready tasks that no pause holds; and the queues where a pause holds some."""
    paused = pauses.records(tx)
    heads: dict[str, list[tuple[int, int, str, str]]] = {}
    held = set[str]()
    for head in heads_of_queues(tx):
        if head.run_at > tx.now:
            continue
        if any(pause.holds(head.queue, kind_of(head.lane)) for pause in paused):
            held.add(head.queue)
            continue
        heads.setdefault(head.queue, []).append((head.run_at, head.priority, head.lane, kind_of(head.lane)))
    found: list[QueueBacklog] = []
    fleet: Fleet | None = None
    for queue, lanes in sorted(heads.items()):
        ready = []
        for _, priority, lane, kind in sorted(lanes)[:_HEADS_PER_QUEUE]:
            row = first_of(tx, LaneHead(queue, lane, priority, 0))
            if row is not None:
                ready.append((ready_since(tx, row.id, row.run_at), kind, row.id, row))
        if ready:
            number = -1 if queue in held else _ready(tx, queue)
            since, kind, _, row = min(ready, key=lambda one: one[:3])
            cause = ""
            if tx.now - since > _ASKED_AFTER and len(found) < _ASKED_QUEUES:
                fleet = fleet or read_fleet(tx)
                cause = cause_of(tx, row, fleet).words
            found.append(QueueBacklog(queue, number, since, kind, cause))
    return found, held


def _ready(tx: Tx, queue: str) -> int:
    row = tx.run(
        f"SELECT count(*) FROM (SELECT 1 FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue "
        f"AND run_at <= :now LIMIT {MAX_BACKLOG}) r",
        queue=queue,
        now=tx.now,
    )
    return int(row.scalar_one())


def departures(tx: Tx, window: int) -> dict[str, int]:
    """How many attempts have ended for good by queue in the last ``window`` (microseconds), from the rollups."""
    good = (AttemptEnd.SUCCEEDED, AttemptEnd.FAILED, AttemptEnd.DEAD, AttemptEnd.CANCELLED)
    rows = tx.run(
        f"SELECT queue, sum(number) AS n FROM schedd_rollups WHERE span = {MINUTE} AND at >= :since "
        f"AND measure = {Measure.RUN} AND outcome IN ({', '.join(str(end.code) for end in good)}) GROUP BY queue",
        since=floor(tx.now - window, MINUTE),
    )
    return {r.queue: int(r.n) for r in rows}


class LongRun(NamedTuple):
    """An attempt that has run for a while: since when (microseconds)."""

    id: int
    kind: str
    started_at: int


def running_since(tx: Tx, before: int) -> list[LongRun]:
    """Attempts that have run since before this instant, the longest first."""
    rows = tx.run(
        f"SELECT id, kind, started_at FROM schedd_tasks WHERE {HELD} "
        "AND worker IS NOT NULL AND started_at IS NOT NULL AND started_at < :before "
        f"ORDER BY started_at LIMIT {MAX_RUNNING}",
        before=before,
    )
    return [LongRun(r.id, r.kind, r.started_at) for r in rows]


def usual_run(tx: Tx, kind: str) -> int | None:
    """The p95 of a kind's run times (microseconds); None if too few attempts of it have ended in the last week."""
    numbers = stats(tx, tx.now - _HISTORY, tx.now, kind=kind).kinds.get(kind)
    if numbers is None or numbers.run.count < _MIN_RUNS:
        return None
    found = numbers.run.percentile(95)
    return None if found is None else round(found * SECOND)


_SUCCEEDED = (
    "EXISTS (SELECT 1 FROM schedd_tasks t WHERE t.schedule = j.name AND t.slot >= j.slot "
    f"AND t.state = {SUCCESS} AND NOT EXISTS (SELECT 1 FROM schedd_tasks b WHERE b.schedule = j.name "
    f"AND b.slot = t.slot AND b.state IN ({_BAD})))"
)
_REMEMBERED = (
    f"EXISTS (SELECT 1 FROM schedd_outcomes o WHERE o.schedule = j.name AND o.slot >= j.slot AND o.state = {SUCCESS})"
)
_GOING = (
    "EXISTS (SELECT 1 FROM schedd_tasks g WHERE g.schedule = j.name AND g.slot >= j.slot "
    f"AND g.state < {FIRST_TERMINAL})"
)
_LAST = f"EXISTS (SELECT 1 FROM schedd_tasks l WHERE l.id = j.task AND l.state = {SUCCESS})"


def without_success(tx: Tx, expected: Sequence[tuple[str, int, int]]) -> set[str]:
    """The names of those of these schedules, (name, slot, task), of whose fire times from ``slot`` on none has
    succeeded or goes on, nor has this ``task`` (0: none) succeeded."""
    if not expected:
        return set()
    rows = tx.run(
        f"SELECT j.name FROM {tx.dialect.rows({'name': str, 'slot': int, 'task': int})} j "
        f"WHERE NOT {_SUCCEEDED} AND NOT {_REMEMBERED} AND NOT {_GOING} AND NOT {_LAST}",
        rows=bind_rows(list(expected)),
    )
    return {r.name for r in rows}


class SourceDeadMessages(NamedTuple):
    """Messages of one source that could become no task, and what the last one had. ``key``: its own."""

    source: str
    number: int
    key: str
    error: str | None


def dead_messages(tx: Tx, within: int) -> list[SourceDeadMessages]:
    """Messages in dead-letter queues of transports that came within so many microseconds, the newest ``MAX_DEAD``."""
    dead = f"verdict = {inbox.DEAD} AND task_id IS NULL"
    rows = tx.run(
        "SELECT source, count(*) AS n, max(last_at) AS last FROM (SELECT source, last_at FROM schedd_inbox "
        f"WHERE {dead} AND last_at >= :since ORDER BY last_at DESC LIMIT {MAX_DEAD}) d "
        f"GROUP BY source ORDER BY n DESC, source LIMIT {MAX_GROUPS}",
        since=tx.now - within,
    ).fetchall()
    found = []
    for row in rows:
        newest = tx.run(
            f"SELECT message_key, error FROM schedd_inbox WHERE {dead} AND last_at = :last AND source = :source "
            "ORDER BY message_key LIMIT 1",
            last=row.last,
            source=row.source,
        ).one()
        found.append(SourceDeadMessages(row.source, row.n, newest.message_key, newest.error))
    return found
