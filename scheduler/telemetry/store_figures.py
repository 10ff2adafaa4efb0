"""Figures of the whole store as metrics: for one reader of a fleet, never from every daemon, or a sum counts N times.

They come from the reads that ``schedctl status`` and programs use.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from scheduler.model.defaults import POOLS, RETENTION
from scheduler.model.state import TaskState
from scheduler.ports import SECOND
from scheduler.store import pauses
from scheduler.store.db.tx import Tx
from scheduler.store.read import figures
from scheduler.store.read.alert_facts import expiring
from scheduler.store.read.executors import executor_statuses
from scheduler.store.read.problems import TABLE
from scheduler.store.read.status import Standing, standing
from scheduler.store.tasks.claim import LaneHead
from scheduler.telemetry.metrics import Family, Metric, Sample

EXPIRY_S = 48 * 3600.0  # dead letters that retention removes within this time are about to expire

TASKS = Metric("schedd_tasks", "gauge", "Tasks by state; at most 100,000 of each are counted.", ("state",))
READY_TASKS = Metric(
    "schedd_ready_tasks", "gauge", "Tasks that are due; at most 100,000 of each are counted.", ("queue", "pool")
)
OLDEST_READY_AGE = Metric(
    "schedd_oldest_ready_age_seconds",
    "gauge",
    "How long the oldest ready task has only wanted a worker.",
    ("queue", "pool"),
)
DEAD_LETTERS = Metric("schedd_dead_letters", "gauge", "Dead letters, among the oldest 20,000.", ("kind",))
OLDEST_DEAD_LETTER_AGE = Metric(
    "schedd_oldest_dead_letter_age_seconds", "gauge", "How long ago the oldest dead letter died.", ("kind",)
)
DEAD_LETTERS_EXPIRING = Metric(
    "schedd_dead_letters_expiring", "gauge", "Dead letters that retention removes soon.", ("kind",)
)
STUCK = Metric(
    "schedd_stuck", "gauge", "What does not move by itself, by the problem that schedctl status names.", ("problem",)
)
WORKERS = Metric("schedd_workers", "gauge", "Workers by state.", ("state",))
EXECUTOR_WORKERS = Metric(
    "schedd_executor_workers",
    "gauge",
    "Workers that an executor has started: pending have not begun.",
    ("executor", "state"),
)
EXECUTOR_WORKERS_WANTED = Metric(
    "schedd_executor_workers_wanted", "gauge", "Workers of an executor that its backlog asks for.", ("executor",)
)
PAUSES = Metric("schedd_pauses", "gauge", "Pauses of queues, kinds or everything.")
SCHEDULES = Metric("schedd_schedules", "gauge", "Schedules by state.", ("state",))
SCHEDULE_LATENESS = Metric(
    "schedd_schedule_lateness_seconds",
    "gauge",
    "How long a schedule has been due and has not fired; of the 200 schedules that are due first.",
    ("name",),
)
SUSPENDED_TASKS = Metric("schedd_suspended_tasks", "gauge", "Durable tasks that sleep or await something.")
UNDECIDED_EDGES = Metric("schedd_undecided_edges", "gauge", "Dependencies that waiting tasks wait for.")
DATABASE_BYTES = Metric("schedd_database_bytes", "gauge", "Size of the database.")
WAL_BYTES = Metric("schedd_wal_bytes", "gauge", "Size of the write-ahead log (SQLite).")
SNAPSHOT_AGE = Metric(
    "schedd_snapshot_age_seconds",
    "gauge",
    "Age of the oldest transaction that keeps dead rows from being removed (PostgreSQL).",
)
SCRAPE_SECONDS = Metric("schedd_scrape_seconds", "gauge", "How long reading these figures took.")

STORE_METRICS = (
    *(TASKS, READY_TASKS, OLDEST_READY_AGE, DEAD_LETTERS, OLDEST_DEAD_LETTER_AGE, DEAD_LETTERS_EXPIRING, STUCK),
    *(WORKERS, EXECUTOR_WORKERS, EXECUTOR_WORKERS_WANTED, PAUSES, SCHEDULES, SCHEDULE_LATENESS, SUSPENDED_TASKS),
    *(UNDECIDED_EDGES, DATABASE_BYTES, WAL_BYTES, SNAPSHOT_AGE, SCRAPE_SECONDS),
)

PROBLEMS = tuple(sorted(row.name.replace(" ", "_") for row in TABLE))
"""Values of the label ``problem``. Each has a value, 0 mostly, so that an alert ends when its problem does."""
WORKER_LABELS = ("live", "draining", "lost", "gone")


def read_figures(tx: Tx, *, dead_retention: float = RETENTION["failed"], expiry: float = EXPIRY_S) -> list[Family]:
    """All of them, in the order of ``STORE_METRICS``. Some ms on a store of 100,000 tasks, and bounded beyond.

    ``dead_retention``: seconds that dead letters are kept; ``expiry``: seconds before their end in which they count as
    expiring, at most half of that.
    """
    begun = time.perf_counter()
    found = standing(tx)
    families = [
        *_of_standing(tx, found),
        *_of_queues(tx, found.seen.heads),
        *_of_dead_letters(tx, dead_retention, expiry),
        *_of_schedules(tx),
    ]
    families += _of_executors(tx)
    families.append(_one(UNDECIDED_EDGES, figures.undecided_edges(tx)))
    size = figures.database(tx)
    families.append(_one(DATABASE_BYTES, size.size))
    if size.wal is not None:
        families.append(_one(WAL_BYTES, size.wal))
    if size.snapshot_age is not None:
        families.append(_one(SNAPSHOT_AGE, size.snapshot_age))
    families.append(_one(SCRAPE_SECONDS, time.perf_counter() - begun))
    named = {family.metric: family for family in families}
    return [named.get(metric, Family(metric)) for metric in STORE_METRICS]


def _one(metric: Metric, value: float) -> Family:
    return Family(metric, [Sample((), value)])


def _counted(metric: Metric, counts: Iterable[tuple[str, float]]) -> Family:
    return Family(metric, [Sample((label,), value) for label, value in counts])


def _of_standing(tx: Tx, found: Standing) -> list[Family]:
    states = {state.value: found.states.get(state.value, 0) for state in TaskState}
    stuck = Counter(dict.fromkeys(PROBLEMS, 0))
    for one in (one for one in found.problems if one.name != "idle"):  # which schedd_workers tells
        stuck[one.name.replace(" ", "_")] += max(1, one.number)
    workers = Counter(worker.state for worker in found.seen.workers)
    return [
        _counted(TASKS, states.items()),
        _counted(STUCK, sorted(stuck.items())),
        _counted(WORKERS, [(state, workers[state]) for state in WORKER_LABELS]),
        _one(PAUSES, len(pauses.records(tx))),
        _one(SUSPENDED_TASKS, states[TaskState.SUSPENDED.value]),
    ]


def _of_queues(tx: Tx, heads: Sequence[LaneHead]) -> list[Family]:
    found = [((one.queue, POOLS[one.priority]), one) for one in figures.ready(tx, heads)]
    ages = [(labels, 0 if one.since is None else max(0, tx.now - one.since)) for labels, one in found]
    return [
        Family(READY_TASKS, [Sample(labels, one.number) for labels, one in found]),
        Family(OLDEST_READY_AGE, [Sample(labels, age / SECOND) for labels, age in ages]),
    ]


def _of_dead_letters(tx: Tx, kept: float, within: float) -> list[Family]:
    found = figures.dead_letters(tx)
    soon = {one.kind: one.number for one in expiring(tx, round(kept * SECOND), round(min(within, kept / 2) * SECOND))}
    return [
        _counted(DEAD_LETTERS, [(one.kind, one.number) for one in found]),
        _counted(OLDEST_DEAD_LETTER_AGE, [(one.kind, max(0, tx.now - one.oldest) / SECOND) for one in found]),
        _counted(DEAD_LETTERS_EXPIRING, [(one.kind, soon.get(one.kind, 0)) for one in found]),
    ]


def _of_schedules(tx: Tx) -> list[Family]:
    found = figures.schedules(tx)
    return [
        _counted(SCHEDULES, [("active", found.active), ("paused", found.paused)]),
        _counted(SCHEDULE_LATENESS, [(name, max(0, tx.now - due) / SECOND) for name, due in found.next_at]),
    ]


def _of_executors(tx: Tx) -> list[Family]:
    """Of those that start workers."""
    found = [(one, one.scale) for one in executor_statuses(tx, counted_too=True).values() if one.scale is not None]
    samples = [
        Sample((one.name, state), number)
        for one, _ in found
        for state, number in (("pending", one.pending), ("running", one.running))
    ]
    wanted = _counted(EXECUTOR_WORKERS_WANTED, [(one.name, scale.wanted) for one, scale in found])
    return [Family(EXECUTOR_WORKERS, samples), wanted]
