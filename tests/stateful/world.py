"""The fleet under test beside its model: two workers on one database, those that were given up, and the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from scheduler import RetryPolicy, Scheduler
from scheduler.errors import CycleError, DuplicateKeyError, InvalidTransitionError
from scheduler.store.admin import doctor as checks
from scheduler.store.db.dialect import prepared
from scheduler.testing import FakeClock
from stateful.fleet_worker import (
    GRACE,
    KEPT,
    LEASE,
    LONGEST_WAIT,
    POOLS,
    FleetWorker,
    Hard,
    Row,
    Soft,
    event_of,
    stored_ids,
)
from stateful.model import HELD, SECOND, Model, Set, Task, Wrong
from stateful.recurring import Recurring

KINDS: dict[str, Any] = {"Hard": Hard, "Soft": Soft}
LEVELS = ("high", "medium", "low")
STATES = [
    "waiting",
    "scheduled",
    "retry",
    "suspended",
    "claimed",
    "running",
    "success",
    "failed",
    "dead",
    "cancelled",
    "skipped",
]  # by their stored codes
WHENS = ("success", "failure", "finished")
OTHERWISES = ("fail", "skip", "run", "wait")
ATTEMPT_ENDS = (
    "succeeded",
    "failed",
    "retried",
    "dead",
    "cancelled",
    "snoozed",
    "suspended",
    "lost",
    "handed back",
    "replaced",
)
COLUMNS = (
    "id, state, attempt, attempt_base, claim, worker, lane, deaths, key_until, held_key, run_at, unmet,"
    " cancel_requested, ended_by"
)
DEAD = 3  # the stored code of a worker's state
MINUTE = 60 * SECOND

Database = Callable[[], AbstractContextManager[str]]


class World:
    def __init__(self, database: Database, hits: Counter[tuple[str, str]]) -> None:
        self._database = database()
        self.url = self._database.__enter__()
        self.clock = FakeClock(datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC))
        self.model = Model(hits)
        self.rows: dict[int, Row] = {}
        self.seats = [self._fleet_worker(), self._fleet_worker()]
        self.zombies: list[FleetWorker] = []
        self.caller = self._scheduler()
        self.postgresql = self.caller.database.dialect.name == "postgresql"

    def _scheduler(self) -> Scheduler:
        made = Scheduler.for_testing(
            url=self.url, clock=self.clock, pools=POOLS, lease=LEASE, misfire_grace=GRACE, retention=KEPT
        )
        for kind in KINDS.values():
            made.register(kind)
        return made

    def _fleet_worker(self) -> FleetWorker:
        return FleetWorker(self._scheduler(), self.clock, self.model, self.rows)

    def close(self) -> None:
        for seat in self.seats + self.zombies:
            seat.abandon()
            seat.engine._drop_connection()
            seat.jobs.database.dispose()
        self.caller.database.dispose()
        self._database.__exit__(None, None, None)

    @property
    def now(self) -> int:
        return self.clock.now()

    @property
    def ids(self) -> list[int]:
        return sorted(self.model.tasks)

    # what callers do

    def schedule(self, specs: list[dict[str, Any]]) -> None:
        """Store these tasks in one batch (a single one without it). ``spec["local"]``: positions in the batch."""
        many = len(specs) > 1
        batch = self.caller.batch()
        builders: list[Any] = []
        for spec in specs:
            builder = (batch if many else self.caller).task(KINDS[spec["kind"]]())
            builder.priority(LEVELS[spec["level"]]).after(spec["after"])
            if spec["tries"] != 1:
                policy = RetryPolicy(spec["wait"], LONGEST_WAIT / SECOND, spec["tries"], jitter=0)
                builder.with_retry(policy)
            if spec["key"]:
                builder.key(spec["key"], conflict=spec["conflict"], retention=spec["retention"])
            for parent, (when, otherwise) in spec["edges"].items():
                builder.depend_on(parent, when=when, otherwise=otherwise)
            for place, (when, otherwise) in spec.get("local", {}).items():
                builder.depend_on(builders[place], when=when, otherwise=otherwise)
            builders.append(builder)
        closes = [self._closes_a_cycle(spec) for spec in specs]
        refused = [
            holder.id for spec in specs if spec["conflict"] == "reject" and (holder := self._holder(spec)) is not None
        ]
        try:
            if many:
                with batch:
                    batch._builders[:] = builders
                made = batch.ids
            else:
                made = [builders[0].schedule()]
        except DuplicateKeyError as error:
            if error.existing_id not in refused:
                raise Wrong(f"rejected for task {error.existing_id}, the holder is {refused}") from error
            return
        except CycleError:
            if not any(closes):
                raise
            return
        if any(closes):
            raise Wrong("a cycle was closed by replacing a task")
        if refused:
            raise Wrong(f"not rejected, though {refused} hold the key")
        for spec, task_id in zip(specs, made, strict=True):
            self._stored(spec, task_id, made)

    def _holder(self, spec: dict[str, Any]) -> Task | None:
        return self.model.holder(spec["kind"], spec["key"], self.now) if spec["key"] else None

    def _closes_a_cycle(self, spec: dict[str, Any]) -> bool:
        holder = self._holder(spec) if spec["conflict"] == "replace" else None
        return holder is not None and holder.live and any(self.model.reaches(holder.id, p) for p in spec["edges"])

    def _stored(self, spec: dict[str, Any], task_id: Any, made: list[Any]) -> None:
        holder = self._holder(spec)
        if holder is not None and spec["conflict"] == "replace" and not holder.live:
            holder.holds_key = False  # a success leaves its key to the new task
            holder = None
        if holder is not None or not task_id.created:
            if holder is None or task_id.created or task_id != holder.id:
                raise Wrong(f"key {spec['key']}: got task {task_id}, the holder is {holder and holder.id}")
            if spec["conflict"] == "replace":
                due, wait, kept = (round(spec[name] * SECOND) for name in ("after", "wait", "retention"))
                new = Set(spec["level"], self.now + due, spec["edges"], spec["tries"], wait, kept)
                self.model.replace(holder.id, new, self.now)
            return
        edges = spec["edges"] | {int(made[place]): edge for place, edge in spec.get("local", {}).items()}
        task = Task(
            int(task_id),
            spec["kind"],
            spec["level"],
            self.now + round(spec["after"] * SECOND),
            edges,
            spec["tries"],
            round(spec["wait"] * SECOND),
            key=spec["key"],
            retention=round(spec["retention"] * SECOND),
            **self._options(spec["kind"]),
        )
        self.model.store(task, self.now)

    def _options(self, kind: str) -> dict[str, Any]:
        return {"dead_letter": False, "result_ttl": 20 * SECOND} if kind == "Soft" else {}

    def cancel(self, task_id: int, cascade: bool) -> None:
        self.caller.cancel_task(task_id, cascade=cascade)
        self.model.cancel(task_id, cascade, self.now)

    def retry(self, task_id: int, downstream: bool) -> None:
        allowed = self.model.may_retry(task_id)
        task = self.model.tasks[task_id]
        other = None if task.live or not allowed else self.model.other(task, self.now)
        try:
            self.caller.retry_task(task_id, downstream=downstream)
        except InvalidTransitionError:
            if allowed:
                raise
            return
        except DuplicateKeyError:
            if other is None:
                raise
            return
        if other is not None:
            raise Wrong(f"task {task_id} was retried, though task {other.id} has its key")
        if not allowed:
            raise Wrong(f"task {task_id} was retried while {self.model.state_of(task_id)}")
        self.model.retry(task_id, downstream, self.now)

    def emit(self, task_id: int, earlier: int) -> None:
        """What the present claim of this task awaits, or will; or what an earlier one did."""
        task = self.model.tasks[task_id]
        event = event_of(task_id, max(1, task.claim - earlier))
        first = self.caller.emit_event(event, {"to": task_id})
        if first == (event in self.model.events):
            raise Wrong(f"event {event}: first={first}, known are {self.model.events}")
        self.model.emit(event, self.now)

    def add_dependency(self, child: int, parent: int, when: str, otherwise: str) -> None:
        cycle = self.model.reaches(child, parent)
        allowed = self.model.may_depend(child)
        try:
            self.caller.add_dependency(child, parent, when, otherwise)
        except CycleError:
            if not cycle:
                raise
            return
        except InvalidTransitionError:
            if allowed:
                raise
            return
        if cycle or not allowed:
            raise Wrong(f"task {child} ({self.model.state_of(child)}) took an edge: cycle={cycle}, allowed={allowed}")
        self.model.add_edge(child, parent, (when, otherwise), self.now)

    def register(self, name: str, kind: str, every: int | None, catchup: str, overlap: str) -> None:
        """``every``: seconds, or None for a cron of every minute.

        One of another recurrence goes first: what replacing it does hangs on what ran, and has tests of its own.
        """
        span, anchor = (MINUTE, 0) if every is None else (every * SECOND, self.now)
        old = self.model.schedules.get(name)
        if old is not None and (old.every, old.anchor == 0) != (span, anchor == 0):
            self.change_schedule(name, "delete")
            old = None
        builder = self.caller.task(KINDS[kind]()).key(name)
        timed = builder.cron("* * * * *") if every is None else builder.every(every)
        timed.catchup(catchup).overlap(overlap).schedule(replace=True)  # type: ignore[arg-type]
        made = Recurring(name, kind, span, anchor, catchup, overlap, 0, 1, self._options(kind))
        made.next_at = made.after(self.now)
        if old is not None:
            made.paused, made.last_task = old.paused, old.last_task
            made.anchor, made.next_at = old.anchor, old.next_at
        else:  # it may have been deleted while a run of it goes on
            made.last_task = max((t.id for t in self.model.tasks.values() if t.live and t.slot_of(name)), default=None)
        self.model.schedules[name] = made

    def change_schedule(self, name: str, what: str) -> None:
        one = self.model.schedules[name]
        if what == "trigger":
            made = int(self.caller.schedules.trigger(name))
            self.model.store(Task(made, one.kind, one.level, self.now, {}, **one.options), self.now)
            return
        getattr(self.caller.schedules, what)(name)
        if what == "delete":
            del self.model.schedules[name]
        elif what == "pause":
            one.paused = True
        elif what == "resume":
            one.resume(self.now)

    def cleanup(self, hours: float) -> None:
        self.caller.cleanup_completed_tasks(hours)
        self.model.sweep(self.now, stored_ids(self.caller), hours * 3600, 1e9, 1e9, by_age=True)

    # what happens to workers

    def crash(self, place: int, found: bool) -> None:
        """A worker is gone, with its claims. ``found``: the other one gets to know at once that it is dead."""
        old = self.seats[place]
        self.zombies.append(old)
        if found and old.wid:
            self.seats[1 - place].known_dead.add(old.wid)
        self.seats[place] = self._fleet_worker()

    def pass_time(self, seconds: float) -> None:
        """With both workers going round often enough to keep their leases."""
        while seconds > 0:
            self.clock.advance(min(9.0, seconds))
            seconds -= 9.0
            for seat in self.seats:
                seat.go_round()

    def settle(self) -> None:
        """Crashed workers' leases run out, and schedules go on that a clock was ahead of; then nothing is held by the
        dead, and doctor has nothing to say."""
        self.pass_time(LEASE)
        ahead = [s.next_at for s in self.model.schedules.values() if s.next_at > self.now + s.every]
        latest = max([row.until for row in self.rows.values() if not row.dead] + ahead)
        self.pass_time((latest - self.now) / SECOND + LEASE)
        live = {seat.wid for seat in self.seats}
        loose = [t.id for t in self.model.tasks.values() if t.state in HELD and t.worker not in live]
        if loose:
            raise Wrong(f"tasks {loose} are held by no live worker")
        self.doctor(every=True)

    def doctor(self, *, every: bool = False) -> None:
        with self.caller.database.read() as tx:
            found = checks.check(tx.at(self.now))
        late = () if every else ("claims", "schedules")  # clean once the dead are reaped and the due is made
        bad = [f for f in found if f.level == checks.PROBLEM and f.check not in late]
        if bad:
            raise Wrong(f"doctor: {bad}")

    # the comparison

    def compare(self) -> None:
        """Every row against the model."""
        with self.caller.database.read() as tx:
            self._compare_all(tx.connection)

    def _compare_all(self, connection: Any) -> None:
        def rows(sql: str) -> list[Any]:
            return connection.execute(prepared(sql)).fetchall()

        stored = {row.id: row for row in rows(f"SELECT {COLUMNS} FROM schedd_tasks")}
        if stored.keys() != self.model.tasks.keys():
            raise Wrong(f"stored are {sorted(stored)}, not {self.ids}")
        gone = {row.task_id: STATES[row.state] for row in rows("SELECT task_id, state FROM schedd_outcomes")}
        if gone != {i: state for i, (state, _) in self.model.gone.items()}:
            raise Wrong(f"remembered are {gone}, not {self.model.gone}")
        edges: dict[int, dict[int, tuple[str, str]]] = {}
        for row in rows("SELECT child, parent, on_end, otherwise FROM schedd_edges"):
            edges.setdefault(row.child, {})[row.parent] = (WHENS[row.on_end], OTHERWISES[row.otherwise])
        history: dict[int, list[tuple[int, int, str]]] = {}
        for row in rows("SELECT task_id, claim, number, outcome FROM schedd_attempts ORDER BY task_id, claim"):
            history.setdefault(row.task_id, []).append((row.claim, row.number, ATTEMPT_ENDS[row.outcome]))
        for i, task in self.model.tasks.items():
            self._compare(task, stored[i], edges.get(i, {}), history.get(i, []))
        leases = {row.id: (row.lease_until, row.state == DEAD) for row in rows("SELECT * FROM schedd_workers")}
        if leases != {wid: (row.until, row.dead) for wid, row in self.rows.items()}:
            raise Wrong(f"leases are {leases}, not {self.rows}")
        held = Counter((t.kind, t.key_at(self.now)) for t in self.model.tasks.values() if t.key_at(self.now))
        if any(n > 1 for n in held.values()):
            raise Wrong(f"keys held twice: {held}")
        nexts = {row.name: row.next_at for row in rows("SELECT name, next_at FROM schedd_schedules")}
        if nexts != {s.name: s.next_at for s in self.model.schedules.values()}:
            raise Wrong(f"next slots are {nexts}, not {self.model.schedules}")

    def _compare(self, task: Task, row: Any, edges: Any, history: Any) -> None:
        state = STATES[row.state]
        pairs: dict[str, tuple[object, object]] = {
            "state": (state, task.state),
            "edges": (edges, task.all_edges),
            "history": (history, task.history),
            "attempt": ((row.attempt, row.attempt_base), (task.attempt, task.base)),
            "claim": ((row.claim, row.worker), (task.claim, task.worker)),
        }
        expired = state == "success" and row.key_until is not None and row.key_until <= self.now
        pairs["key"] = (None if expired else row.held_key, task.key_at(self.now))
        if self.postgresql and task.state == "suspended" and self.model.happened(task):
            task.run_at = min(task.run_at, row.run_at)  # woken once more, after the clock went back
        if task.state in ("waiting", "scheduled", "retry", "suspended"):
            pairs["due"] = (row.run_at, task.run_at)
        if task.state in ("waiting", "scheduled") and not task.begun:
            pairs["unmet"] = (row.unmet, self.model.open_edges(task))
        if task.live:
            pairs["suspect"] = ((row.lane.startswith("!"), row.deaths), (task.alone, task.deaths))
            pairs["cancel"] = (row.cancel_requested is not None, task.cancel_asked)
        wrong = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if wrong:
            raise Wrong(f"task {task.id} (stored, expected): {wrong}; {task}")
        if (row.ended_by is None) != (not task.ended_by) or (task.ended_by and row.ended_by not in task.ended_by):
            raise Wrong(f"task {task.id} was ended by {row.ended_by}, not {task.ended_by}")
        task.ended_by &= {row.ended_by}  # of several either may be named
        if [end for _, _, end in task.history].count("succeeded") > 1 + task.replaced:
            raise Wrong(f"task {task.id} has more than one success")
