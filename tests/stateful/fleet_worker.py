"""One worker of the fleet under test, driven by hand, and the model's idea of its lease and of what it holds.

Handlers run in threads of their own and wait for an order to end, so that what the model calls running
really is in the middle of ``run``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from scheduler import PermanentError, Retry, Scheduler, Snooze, Task
from scheduler.testing import FakeClock, engine_of
from stateful.model import ALONE_FOR, HELD, SECOND, Model, Outcome, Wrong
from stateful.model import Task as Child
from support.fleet import rows

LEASE = 30.0
REAP_EVERY = 2.0
WITH_OTHERS = 0.9
TOLD_EVERY = 0.25
SWEEP_EVERY = 60.0
GIVE_BACK = 1.0
BESIDE = 1  # seconds
MARK_AFTER = 0.005
GRACE = 10
KEPT = {"success": 40.0, "failed": 90.0, "outcomes": 100_000.0}
POOLS = {"high": (1, 0), "medium": (2, 0), "low": (1, 0)}
DURABLE = ("nap", "await", "child")  # what is written on the way, in a cycle of its own
ENDINGS = ("success", "error", "permanent", "retry", "snooze", *DURABLE)
RETRY_AFTER, SNOOZE, NAP, PATIENCE = 5, 7, 6, 15  # seconds
LONGEST_WAIT = 60 * SECOND
MOST = 40  # tasks from which on none is spawned


class BodyThread(threading.Thread):
    """Runs one waiting attempt of an inline pool; its handler waits for orders."""

    def __init__(self, slots: Any) -> None:
        super().__init__(daemon=True)
        self._slots = slots
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()

    def begin(self) -> bool:
        """Whether it is in its handler now; else it has ended already."""
        self.start()
        return self._news.get(timeout=20) == "running"

    def end(self, how: str) -> None:
        self._orders.put(how)
        assert self._news.get(timeout=20) == "over"
        self.join()

    def run(self) -> None:
        self._slots.run_one()
        self._news.put("over")

    def play(self, ctx: Any) -> dict[str, int]:
        self._news.put("running")
        how = self._orders.get()
        if how == "error":
            raise RuntimeError("told to")
        if how == "permanent":
            raise PermanentError("told to")
        if how == "retry":
            raise Retry(after=RETRY_AFTER)
        if how == "snooze":
            raise Snooze(SNOOZE)
        claim = ctx._attempt.claimed.claim  # each claim has names of its own, so that it does what the test asks
        if how == "nap":
            ctx.sleep_for(NAP, name=f"nap of {claim}")
        if how == "await":
            ctx.await_event(event_of(ctx.id, claim), timeout=PATIENCE)
        if how == "child":
            ctx.await_task(ctx.spawn(Hard(), name=f"child of {claim}"), timeout=PATIENCE)
        return {"answer": 42}


def event_of(task_id: int, claim: int) -> str:
    """What this claim of a task awaits."""
    return f"{task_id}-{claim}"


class Hard(Task):
    """Fails as a dead letter."""

    def run(self, ctx: Any) -> Any:
        thread = threading.current_thread()
        assert isinstance(thread, BodyThread)
        return thread.play(ctx)


class Soft(Hard, dead_letter=False, result_ttl=20):
    """Ends failed instead of dead; its result lives for 20 s only."""


@dataclass
class Row:
    """A worker's row, as the model knows it."""

    until: int
    incarnation: str
    dead: bool = False


@dataclass
class Body:
    """One claimed attempt. The budget is what it was at the claim."""

    task: int
    claim: int
    number: int
    used: int
    tries: int | None
    wait: int
    dead_letter: bool
    pool: int
    submitted_at: float
    thread: BodyThread | None = None
    begun_at: float = 0.0
    over: bool = False
    marked: bool = False
    cancelled: bool = False
    lost: bool = False
    child: int | None = None  # that it awaits

    def outcome(self, how: str, now: int) -> Outcome:
        """What is to be recorded when its handler ends like this."""
        for_good = "dead" if self.dead_letter else "failed"
        again = self.tries is None or self.used < self.tries
        wait = min(self.wait * 2 ** (self.used - 1), LONGEST_WAIT)
        state, end, run_at, refund = {
            "success": ("success", "succeeded", None, 0),
            "error": ("retry", "retried", now + wait, 0),
            "permanent": (for_good, for_good, None, 0),
            "retry": ("retry", "retried", now + RETRY_AFTER * SECOND, 0),
            "snooze": ("scheduled", "snoozed", now + SNOOZE * SECOND, 1),
            "nap": ("suspended", "suspended", now + NAP * SECOND, 0),
            "await": ("suspended", "suspended", now + PATIENCE * SECOND, 0),
            "child": ("suspended", "suspended", now + PATIENCE * SECOND, 0),
        }[how]
        if state == "retry" and not again:
            state, end, run_at = for_good, for_good, None
        if self.cancelled:
            state, end, run_at, refund = "cancelled", "cancelled", None, 0
        awaits = event_of(self.task, self.claim) if how == "await" else self.child
        return Outcome(self.task, self.claim, self.number, state, end, True, now, run_at, refund, awaits)


@dataclass
class FleetWorker:
    """A worker: what really runs, and what the model expects of it."""

    jobs: Scheduler
    clock: FakeClock
    model: Model
    rows: dict[int, Row]
    wid: int = 0
    bodies: dict[tuple[int, int], Body] = field(default_factory=dict)
    reported: list[Outcome] = field(default_factory=list)
    alone: Body | None = None
    known_dead: set[int] = field(default_factory=set)
    patient_until: float = 0.0
    next_lapse: int = 0  # of the other workers' leases, as it saw them last
    seen: tuple[int, float] | None = None
    renewed: float = 0.0
    due: dict[str, float] = field(default_factory=dict)
    just_made: set[int] = field(default_factory=set)  # slots' tasks that this step has made

    def __post_init__(self) -> None:
        self.engine = engine_of(self.jobs)
        self.renewed = self.clock.monotonic()

    # handlers

    def waiting(self) -> list[Body]:
        """What no slot has begun, in the order of the pools."""
        keys = [(a.claimed.id, a.claimed.claim) for s in self.engine.inline_slots() for a in s.waiting]
        return [self.bodies[key] for key in keys]

    def running(self) -> list[Body]:
        return [b for b in self.bodies.values() if b.thread is not None and not b.over]

    def begin(self, pick: int) -> None:
        """A slot begins what has waited longest in its pool."""
        pools = [s for s in self.engine.inline_slots() if s.waiting]
        slots = pools[pick % len(pools)]
        first = slots.waiting[0].claimed
        body = self.bodies[first.id, first.claim]
        body.thread, body.begun_at = BodyThread(slots), self.clock.monotonic()
        if body.thread.begin() == body.cancelled:
            raise Wrong(f"task {body.task}: cancelled={body.cancelled}, yet its handler ran or not accordingly")
        if body.cancelled:
            self._over(body, "success")

    def end(self, body: Body, how: str) -> None:
        assert body.thread is not None
        if how == "child" and len(self.model.tasks) >= MOST:
            how = "nap"
        body.thread.end(how)
        if how in DURABLE and not body.cancelled and not body.lost:
            how = self._asked(body, how)
        self._over(body, how)

    def _asked(self, body: Body, how: str) -> str:
        """It asked for something durable, which a cycle wrote that claimed nothing. Returns how it ended then."""
        if body.claim > 1 and not self._ours(body):
            return "success"  # it first reads what is recorded, and that tells it that it is lost: no cycle
        self._turn(claiming=False)
        if not self._ours(body):
            return "success"  # it was told that it is lost, and whatever it says is dropped
        self.rows[self.wid].until = self.clock.now() + round(LEASE * SECOND)
        body.cancelled = self.model.tasks[body.task].cancel_asked
        if how == "child":
            self._spawned(body)
        if how == "await" and event_of(body.task, body.claim) in self.model.events:
            return "success"  # it is there already
        return how

    def _spawned(self, body: Body) -> None:
        now = self.clock.now()
        made = rows(self.jobs, "SELECT id FROM schedd_tasks WHERE spawned_by = :t ORDER BY id", t=body.task)
        new = [row.id for row in made if row.id not in self.model.tasks]
        if len(new) != 1 and not body.cancelled:
            raise Wrong(f"task {body.task} spawned {new}, not one task")
        for child in new:
            self.model.store(Child(child, "Hard", 1, now, {}, spawned_by=body.task), now)
            body.child = child
            self.model.watched[body.task, body.claim] = child

    def _over(self, body: Body, how: str) -> None:
        body.over = True
        self.reported.append(body.outcome(how, self.clock.now()))

    def abandon(self) -> None:
        """End these threads: the test waits for them no more."""
        for body in self.running():
            assert body.thread is not None
            body.thread.end("success")

    # the engine's round

    def step(self) -> None:
        """One step of the engine, then the same of the model."""
        for wid in self.known_dead:
            self.engine.lease._dead.append(self.rows[wid].incarnation)
        self.engine.wake()
        polls = self.engine._poll_is_due()  # what is due soon is done with it
        self.engine.step()
        self._lease(WITH_OTHERS if polls else 0.0)
        self._upkeep()
        self._turn(claiming=True)

    def go_round(self) -> None:
        """A step, and the slots begin what came of it."""
        self.step()
        while self.waiting():
            self.begin(0)

    def late_turn(self) -> None:
        """A cycle of a worker that stood still between its upkeep and its cycle: is its lease over?"""
        self.engine.dispatch.run(self.engine._conn(), claiming=False)
        self._turn(claiming=False)

    def _lease(self, early: float = 0.0) -> None:
        now, mono = self.clock.now(), self.clock.monotonic()
        if not self.wid:
            self._join()
        if self.seen is not None and abs((now - self.seen[0]) / SECOND - (mono - self.seen[1])) > LEASE / 3:
            self.patient_until = mono + LEASE  # the clock jumped, perhaps the others' too
            self.due["renew"] = 0.0  # and the lease is to end by the new time
        self.seen = (now, mono)
        if self._at("renew", LEASE / 3):
            if mono - self.renewed > LEASE * 2 / 3:
                self.patient_until = mono + LEASE
            self.renewed = mono
            row = self.rows[self.wid]
            if row.dead:
                self._lost()
            else:
                row.until = now + round(LEASE * SECOND)
        if self._at("told", TOLD_EVERY) and self.rows[self.wid].dead:
            self._lost()  # it reads its own row at each notification, and each step sends one
        if self._at("reap", REAP_EVERY, early):
            self._reap()
            self.due["reap"] = min(self.due["reap"], self.clock.monotonic() + self._next_reap())

    def _at(self, what: str, every: float, early: float = 0.0) -> bool:
        mono = self.clock.monotonic()
        if mono < self.due[what] - early:
            return False
        self.due[what] = mono + every
        return True

    def _join(self) -> None:
        now, mono = self.clock.now(), self.clock.monotonic()
        if self.engine.worker in self.rows:
            raise Wrong(f"worker {self.engine.worker} goes on, but it was reclaimed")
        self.wid = self.engine.worker
        self.rows[self.wid] = Row(now + round(LEASE * SECOND), self.engine.registration.incarnation)
        self.renewed = mono
        self.due = {"renew": mono + LEASE / 3, "reap": mono + REAP_EVERY, "sweep": mono + SWEEP_EVERY, "told": 0.0}
        self.patient_until = max(self.patient_until, mono + 0.4 * LEASE)  # it has seen nothing yet
        self._reap()

    def _lost(self) -> None:
        """Reclaimed: a new worker from now on; what runs is no longer its own."""
        self.bodies = {key: b for key, b in self.bodies.items() if b.thread is not None}
        for body in self.bodies.values():
            body.lost = True
        self.alone = None
        self._join()

    def _next_reap(self) -> float:
        """Seconds after which another one's lease may have run out, as far as it knows."""
        mono = self.clock.monotonic()
        if mono < self.patient_until:
            return self.patient_until - mono
        left = (self.next_lapse - self.clock.now()) / SECOND
        return left + 0.005 if left >= 0 else float("inf")

    def _reap(self) -> None:
        now = self.clock.now()
        patient = self.clock.monotonic() < self.patient_until
        known, self.known_dead = self.known_dead, set()
        if patient and not known:
            self._look()
            return
        for wid, row in self.rows.items():
            if wid != self.wid and (wid in known or (row.until < now and not patient)):
                row.dead = True
        for wid, row in sorted(self.rows.items()):
            if row.dead:
                self.model.take_back(wid, now)
        self._look()

    def _look(self) -> None:
        self.next_lapse = min((r.until for wid, r in self.rows.items() if wid != self.wid and not r.dead), default=0)

    def _upkeep(self) -> None:
        now = self.clock.now()
        sweeps = self._at("sweep", SWEEP_EVERY)
        if sweeps or any(t.late for t in self.model.tasks.values()):
            self.model.sweep(now, stored_ids(self.jobs), **KEPT, late=not sweeps)
        expected = self.model.tick(now, GRACE * SECOND)
        new = [r for r in slot_rows(self.jobs) if r.id not in self.model.tasks]
        if sorted((r.schedule, r.slot) for r in new) != sorted(expected):
            raise Wrong(f"slots {[(r.schedule, r.slot) for r in new]} were made, not {expected}")
        self.just_made = {row.id for row in new}
        for row in new:
            self.model.make_slot(row.id, (row.schedule, row.slot), row.key, now)
        for body in self.bodies.values():
            body.cancelled = body.cancelled or (self._ours(body) and self.model.tasks[body.task].cancel_asked)

    def _ours(self, body: Body) -> bool:
        t = self.model.tasks.get(body.task)
        return t is not None and t.state in HELD and (t.worker, t.claim) == (self.wid, body.claim)

    def _turn(self, *, claiming: bool) -> None:
        now, mono = self.clock.now(), self.clock.monotonic()
        waiting = [b for b in self.bodies.values() if b.thread is None and not b.over]
        late = [b for b in waiting if b.submitted_at <= mono - GIVE_BACK]
        back = [Outcome(b.task, b.claim, b.number, "scheduled", "", False, now, None, 1) for b in late]
        outcomes, self.reported = self.reported + back, []
        self.model.finish(self.wid, outcomes, now)
        for o in outcomes:
            self.bodies.pop((o.task, o.claim), None)
        for body in self.running():
            if not body.marked and not body.lost and body.begun_at <= mono - MARK_AFTER and self._ours(body):
                self.model.move(self.model.tasks[body.task], "running")
                body.marked = True
        self._absolve(mono)
        if claiming:
            self._claims(now, mono)
        held = set(self.engine.engine_state.held)
        if held != self.bodies.keys():
            raise Wrong(f"worker {self.wid} holds {sorted(held)}, not {sorted(self.bodies)}")

    def _absolve(self, mono: float) -> None:
        """A suspect that has run by itself for long enough is an ordinary task again."""
        if self.alone is None:
            return
        key = self.alone.task, self.alone.claim
        if key not in self.bodies:
            self.alone = None
        elif self.alone.thread is not None and self.alone.begun_at <= mono - ALONE_FOR:
            if self._ours(self.alone):
                self.model.tasks[key[0]].alone = False
            self.alone = None

    def _claims(self, now: int, mono: float) -> None:
        idle = self.alone is None
        young = [b for b in self.bodies.values() if b.thread is None or b.begun_at > mono - ALONE_FOR]
        lost = {b.task for b in self.bodies.values() if b.lost}
        new = [row for row in held_rows(self.jobs, self.wid) if (row.id, row.claim) not in self.bodies]
        for row in new:
            postgresql = self.jobs.database.dialect.name == "postgresql"
            t = self.model.claimed(row.id, row.claim, self.wid, now, woken_again=postgresql)
            attempt = self.engine.engine_state.held[row.id, row.claim]
            used = max(1, t.attempt - t.base)
            body = Body(t.id, t.claim, t.attempt, used, t.tries, t.wait, t.dead_letter, attempt.pool, mono)
            self.bodies[t.id, t.claim] = body
            if t.level > attempt.pool:
                raise Wrong(f"task {t.id} of level {t.level} went to pool {attempt.pool}")
            if t.alone and (len(new) > 1 or young):
                raise Wrong(f"suspect {t.id} does not run alone: {young}")
            if t.id in lost:  # its last handler has not ended here: it goes back, so as not to run beside that
                body.over = True
                later = now + BESIDE * SECOND
                self.reported.append(Outcome(t.id, t.claim, t.attempt, "scheduled", "", False, now, later, 1))
            elif t.alone:
                self.alone = body
        if new and not idle:
            raise Wrong(f"{[row.id for row in new]} claimed beside a suspect")
        if self.rows[self.wid].dead:
            if new:
                raise Wrong(f"worker {self.wid}, which is dead, claimed {[row.id for row in new]}")
        elif not new and idle:
            self._nothing_left(now)

    def _nothing_left(self, now: int) -> None:
        """Nothing was claimed: then no slot is free that could run what is due.

        A woken engine looks for new schedules after its cycle; what they make is the next one's, which comes at once.
        """
        ready = [
            t
            for t in self.model.tasks.values()
            if t.state in ("scheduled", "retry", "suspended") and t.run_at <= now and t.id not in self.just_made
        ]
        if any(t.alone for t in ready):
            return  # it may wait for a quiet moment
        for level, (slots, _) in enumerate(POOLS.values()):
            taken = sum(b.pool == level for b in self.bodies.values())
            left = [t.id for t in ready if t.level <= level]
            if taken < slots and left:
                raise Wrong(
                    f"pool {level} of worker {self.wid} is free, yet {left} were not claimed; it holds {self.bodies}"
                )


def slot_rows(jobs: Scheduler) -> Iterator[Any]:
    yield from rows(jobs, "SELECT id, schedule, slot, key FROM schedd_tasks WHERE slot IS NOT NULL ORDER BY id")


def stored_ids(jobs: Scheduler) -> set[int]:
    return {row.id for row in rows(jobs, "SELECT id FROM schedd_tasks")}


def held_rows(jobs: Scheduler, wid: int) -> Iterator[Any]:
    yield from rows(jobs, "SELECT id, claim FROM schedd_tasks WHERE worker = :w AND state IN (4, 5) ORDER BY id", w=wid)
