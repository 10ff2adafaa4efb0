"""Random graphs on a few workers, and what must hold of them after every action.

There is no model here: each check says something that is true of any graph. So the actions may be what the model of
``machine.py`` leaves out: large batches with many edges, caps, queues, pools and limits of all sizes, suspects, cycles
that fail, handlers with a transaction. All chance comes from one seed, all time from one clock.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import pytest

from scheduler import Context, PermanentError, RetryPolicy, Scheduler, task
from scheduler.engine.dispatch import completion as ledger
from scheduler.engine.dispatch import lanes
from scheduler.errors import ConfigError, CycleError, DuplicateKeyError, InvalidTransitionError
from scheduler.model.lanes import base_lane
from scheduler.model.state import CLAIMABLE, HELD, EdgeVerdict, Otherwise, TaskState, When, edge_verdict
from scheduler.ports import FAILPOINTS
from scheduler.store.admin import doctor as checks
from scheduler.store.graph import release
from scheduler.store.tasks import ready_children as ripe
from scheduler.testing import FakeClock, engine_of
from stateful.model import Wrong
from support.fleet import rows, run_claimed, step, write

MOST = {"capped": 2, "keyed": 1}  # held at a time, of these kinds' lanes
ACTIONS = {
    "schedule": 10,
    "take_a_turn": 20,
    "run_some": 20,
    "go_round": 30,
    "let_time_pass": 5,
    "cancel": 2,
    "retry": 6,
    "fail_a_turn": 3,
    "suspect": 4,
    "replace": 6,
}  # how often each: workers are to be idle now and then, for then they do without looking
HOWS = {"nothing": 58, "value": 28, "large": 3, "dead": 1.2, "cancel": 0.8, "transaction": 4, "torn": 3, "again": 2}
FAILING = ("before finish commit", "before commit beside the claim")  # the second: PostgreSQL only
WHENS = ("success", "success", "failure", "finished", "finished")  # most of a graph is not to end by failures
NEWEST = 15  # tasks that new ones may depend on: else a graph is wide, and not deep
LONGEST = 60  # seconds until everything has ended that the test does not hold
SUSPECT = "!"

_TASKS = "SELECT id, state, unmet, kind, key, queue, lane, claim, worker, claimed_at, run_at, rerun FROM schedd_tasks"
_EDGES = """
SELECT e.child, e.parent, e.on_end, e.otherwise, p.state
FROM schedd_edges e JOIN schedd_tasks p ON p.id = e.parent
"""
_WHENS, _OTHERWISES = tuple(When), tuple(Otherwise)
_SUCCEEDED = 0  # the stored code of an attempt's end


class Boom(Exception):
    """What was told to fail."""


class Edge(NamedTuple):
    """What ``child`` waits for; ``verdict``: what the parent's end means for it, None while it has not ended."""

    child: int
    parent: int
    verdict: EdgeVerdict | None

    @property
    def met(self) -> bool:
        return self.verdict is EdgeVerdict.SATISFIED


@contextmanager
def failing(at: str) -> Iterator[None]:
    """Raise Boom in each thread that reaches this failpoint."""

    def hit(name: str) -> None:
        if name == at:
            raise Boom

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FAILPOINTS, "hit", hit)
        yield


def play(ctx: Context, how: str) -> str | None:
    """The handler of all kinds: look whether it may run at all, and end as its payload says."""
    world: World = ctx.state
    world.body_began(ctx)
    if how == "dead":
        raise world.failure(ctx, PermanentError("told to"))
    if how == "again" and ctx.attempt == 1:
        raise world.failure(ctx, ValueError("told to"))
    if how == "cancel":
        world.client.cancel_task(ctx.id)
    # Without a statement: the success is all there is to commit.
    if how == "torn" and ctx.attempt == 1:
        try:
            with failing("before transaction commit"), ctx.transaction():
                pass
        except Boom as error:
            raise world.failure(ctx, error) from None
    elif how in ("torn", "transaction"):
        with ctx.transaction():
            pass
    return {"value": "r", "large": "r" * 2000}.get(how)


@task
def plain(ctx: Context, how: str, group: str, pad: str) -> str | None:
    return play(ctx, how)


@task(queue="elsewhere")
def elsewhere(ctx: Context, how: str, group: str, pad: str) -> str | None:
    return play(ctx, how)


@task(max_concurrency=MOST["capped"])
def capped(ctx: Context, how: str, group: str, pad: str) -> str | None:
    return play(ctx, how)


@task(max_concurrency=MOST["keyed"], concurrency_key="{group}")
def keyed(ctx: Context, how: str, group: str, pad: str) -> str | None:
    return play(ctx, how)


def play_seed(url: str, seed: int) -> Counter[str]:
    """One random run on this database, which is empty. Returns how many tasks ended how. A failure names the seed."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(url, random.Random(seed), patch)
        try:
            world.act()
            world.settle()
            return world.ends()
        except BaseException as error:
            error.add_note(f"seed: {seed}; the last actions: {', '.join(world.done[-8:])}")
            raise
        finally:
            world.close()


class World:
    """The workers, one who schedules, and what has to be known of the past to judge the present."""

    def __init__(self, url: str, rng: random.Random, patch: pytest.MonkeyPatch) -> None:
        self.url = url
        self.rng = rng
        self.clock = FakeClock()
        self.ids: list[int] = []
        self.done: list[str] = []  # the actions, for a failure
        self._wrong: list[str] = []  # what handlers found: what they raise is an attempt's end and no more
        self._bodies: set[tuple[int, int]] = set()  # (task, claim) of those that ran
        self._failures: set[tuple[int, int]] = set()  # of these those that failed
        self._left_alone: set[tuple[int, int]] = set()  # (child, parent) that no longer, or not yet, count
        self._made: list[Scheduler] = []
        self._make_small(patch)
        self._numbers = count()
        self._kinds = [plain, elsewhere, capped, capped, keyed] if rng.random() < 0.6 else [plain, elsewhere]
        self.client = self._scheduler()
        self.workers = [self._worker() for _ in range(rng.randint(1, 3))]

    def close(self) -> None:
        """As if all were killed: nothing more is written."""
        for jobs in self._made:
            if jobs._engine is not None:
                jobs._engine._drop_connection()
                jobs._engine = None
            jobs.close()

    # who takes part

    def _make_small(self, patch: pytest.MonkeyPatch) -> None:
        """What the product does in parts is done in parts of a few here, for a run has some fifty tasks."""
        choice = self.rng.choice
        patch.setattr(lanes, "LANES_PER_SCAN", choice((1, 2, 3, lanes.LANES_PER_SCAN, lanes.LANES_PER_SCAN)))
        patch.setattr(ripe, "MAX_CHILDREN", choice((0, 2, 5, ripe.MAX_CHILDREN, ripe.MAX_CHILDREN, ripe.MAX_CHILDREN)))
        patch.setattr(release, "MAX_CHILDREN", choice((1, 2, 5, release.MAX_CHILDREN)))
        patch.setattr(ledger, "BACKGROUND_MIN_OUTCOMES", choice((1, 3, ledger.BACKGROUND_MIN_OUTCOMES)))

    def _scheduler(self, **options: Any) -> Scheduler:
        made = Scheduler.for_testing(url=self.url, clock=self.clock, state=self, **options)
        for kind in dict.fromkeys(self._kinds):
            made.register(kind)
        self._made.append(made)
        return made

    def _worker(self, *, serves_all: bool = False) -> Scheduler:
        rng = self.rng
        slots = {"high": rng.randint(1, 2), "medium": rng.randint(1, 6), "low": rng.randint(1, 3)}
        options: dict[str, Any] = {"pools": {pool: (size, 0) for pool, size in slots.items()}}
        if rng.random() < 0.3:
            options["max_concurrent_tasks"] = rng.randint(1, 5)
        if rng.random() < 0.3 and not serves_all:
            options["queues"] = ["default"]
        made = self._scheduler(**options)
        engine = engine_of(made)
        engine.dispatch.planner.batch = rng.choice((2, 4, 256))
        if rng.random() < 0.5:
            engine._poll_every = lambda: 1.0  # type: ignore[method-assign]  # so that it relies on notifications
        return made

    # what happens

    def act(self) -> None:
        """Random actions, and a look at everything after each."""
        for _ in range(self.rng.randint(30, 80)):
            (name,) = self.rng.choices(list(ACTIONS), list(ACTIONS.values())) if self.ids else ("schedule",)
            self.done.append(name)
            action: Callable[[], None] = getattr(self, name)
            action()
            self.check()

    def schedule(self) -> None:
        """A batch that hangs together, and on what was scheduled last."""
        rng, batch = self.rng, self.client.batch()
        fan = rng.random() < 0.4  # most wait for the first: more becomes ready at once than a worker takes
        kinds = [rng.choice(self._kinds)] if fan else [*self._kinds, plain, plain]
        parents: list[Any] = [] if fan else list(self.ids[-NEWEST:])
        odd = rng.choice((0.1, 0.1, 0.5))  # edges that wait for something else than a success
        named = rng.choice((0.0, 0.1, 0.4))  # tasks with a key
        conflicts = set()
        for _ in range(rng.randint(1, 24 if fan else 12)):
            builder = self._builder(batch, kinds)
            self._depend(builder, parents, odd)
            conflicts.add(self._name(builder, named))
            if not (fan and parents):
                parents.append(builder)
        self._store(batch, conflicts)

    def replace(self) -> None:
        """Another set for a task with a key, which ends it at once if it is not held, and new tasks below it."""
        rng, tasks = self.rng, self._tasks()
        named = [t for t in tasks if t.key is not None and t.state < TaskState.SUCCESS.code]
        failed = [t.id for t in tasks if t.state > TaskState.SUCCESS.code]
        if not (named and failed):
            return
        holder, batch = rng.choice(named), self.client.batch()
        (kind,) = (k for k in dict.fromkeys(self._kinds) if k.__name__ == holder.kind)
        above = self._builder(batch, [kind]).key(holder.key, conflict="replace").depend_on(rng.choice(failed))
        for _ in range(rng.randint(1, 4)):
            below = self._builder(batch, self._kinds)
            below.depend_on(above, when=rng.choice(WHENS), otherwise=rng.choice(_OTHERWISES))
            self._depend(below, [i for i in self.ids[-NEWEST:] if i != holder.id], 0.1)
        self._store(batch, {"replace"})

    def _store(self, batch: Any, conflicts: set[str | None]) -> None:
        """``conflicts``: of its keys. They may make a task wait for itself, or two parents one."""
        try:
            with batch:
                pass
        except CycleError:
            if "replace" not in conflicts:
                raise
            return
        except ConfigError:
            if conflicts == {None}:
                raise
            return
        self.ids += sorted(set(map(int, batch.ids)) - set(self.ids))
        # What was replaced while it was held has the edges of the next set beside those of the one that runs.
        self._leave_alone(t.id for t in self._tasks() if t.rerun)
        for jobs in self.workers:
            if self.rng.random() < 0.9:
                engine_of(jobs).wake()

    def _builder(self, batch: Any, kinds: list[Any]) -> Any:
        """A task that waits for nothing."""
        rng = self.rng
        (how,) = rng.choices(list(HOWS), list(HOWS.values()))
        builder = batch.task(rng.choice(kinds), how, rng.choice("ab"), "p" * (1500 if rng.random() < 0.08 else 1))
        if how in ("again", "torn"):
            builder.with_retry(RetryPolicy(0.5, 60, 3, jitter=0))
        if rng.random() < 0.15:
            builder.after(rng.choice((0.1, 1, 3)))
        if rng.random() < 0.3:
            builder.priority(rng.choice(("high", "low")))
        if number := next(self._numbers) % 4:  # whatever the seed: caps count all of them
            builder.fairness_key("xyz"[number - 1]).fairness_weight(number)
        return builder

    def _depend(self, builder: Any, parents: list[Any], odd: float) -> None:
        """Let it wait for some of these."""
        rng = self.rng
        for parent in rng.sample(parents, min(len(parents), rng.choice((0, 1, 1, 2, 3, 5)))):
            if rng.random() >= odd:
                builder.depend_on(parent)
            else:
                builder.depend_on(parent, when=rng.choice(WHENS), otherwise=rng.choice(_OTHERWISES))

    def _name(self, builder: Any, named: float) -> str | None:
        """Give it a key, or none. Returns what happens to who holds that."""
        if self.rng.random() >= named:
            return None
        conflict: str = self.rng.choice(("replace", "keep"))
        builder.key(self.rng.choice("ab"), conflict=conflict)
        return conflict

    def take_a_turn(self) -> None:
        engine_of(self._one()).step()

    def run_some(self) -> None:
        """Some handlers of what a worker has claimed; they are recorded by whatever turn comes next."""
        for slots in engine_of(self._one()).inline_slots():
            if self.rng.random() < 0.8:
                for _ in range(self.rng.randint(1, 6)):
                    slots.run_one()

    def go_round(self) -> None:
        jobs = self._one()
        run_claimed(jobs)
        engine_of(jobs).step()

    def let_time_pass(self) -> None:
        self.clock.advance(self.rng.choice((0.05, 0.1, 0.3, 1)))

    def cancel(self) -> None:
        self.client.cancel_task(self.rng.choice(self.ids), cascade=self.rng.random() < 0.3)

    def retry(self) -> None:
        """Some ended task, perhaps with what it took along."""
        chosen = self.rng.choice(self.ids)
        try:
            self.client.retry_task(chosen, downstream=self.rng.random() < 0.8)
        except InvalidTransitionError:
            return
        except DuplicateKeyError as error:
            self._check_key_taken(chosen, error)
            return
        # What has begun below it goes on as if it had not been.
        self._leave_alone(t.id for t in self._tasks() if t.claimed_at is not None)

    def _check_key_taken(self, refused: int, error: DuplicateKeyError) -> None:
        """The task that a refusal names has the key, and has not ended otherwise than by success."""
        tasks = {t.id: t for t in self._tasks()}
        other = tasks[error.existing_id]
        taken = other.state < TaskState.SUCCESS.code or error.completed
        if refused == other.id or (other.kind, other.key) != (tasks[refused].kind, tasks[refused].key) or not taken:
            raise Wrong(f"{tasks[refused]} is refused because of {other}: {error}")

    def _leave_alone(self, children: Iterable[int]) -> None:
        """Those of their edges that are not met at present do not keep these from running."""
        left = set(children)
        self._left_alone |= {(e.child, e.parent) for e in self._edges() if e.child in left and not e.met}

    def fail_a_turn(self) -> None:
        """Right before it commits, and then do what the engine's loop does. (Not after a commit: an error that is
        raised there is nothing that happens, while a lost answer is the business of the fault tests.)"""
        engine = engine_of(self._one())
        try:
            with failing(self.rng.choice(FAILING)):
                engine.step()
        except Boom:
            engine._drop_connection()
            engine._needs_scan = True

    def suspect(self) -> None:
        """A waiting task that was held by a worker as that died."""
        write(
            self.client,
            f"UPDATE schedd_tasks SET lane = '{SUSPECT}' || ltrim(lane, '{SUSPECT}'), suspect = 1 "
            "WHERE id = :id AND state = 0",
            id=self.rng.choice(self.ids),
        )

    def _one(self) -> Scheduler:
        return self.rng.choice(self.workers)

    def body_began(self, ctx: Context) -> None:
        """What a handler that is about to run may ask: whether all that it waits for has ended as it should."""
        claim = _claim_of(ctx)
        if claim in self._bodies:
            self._wrong.append(f"task {ctx.id} runs twice with claim {claim[1]}")
        self._bodies.add(claim)
        for edge in self._not_met(self._edges(ctx.id)):
            self._wrong.append(f"task {ctx.id} runs, and {edge} is not met")

    def failure(self, ctx: Context, error: Exception) -> Exception:
        """The error that this handler is about to raise."""
        self._failures.add(_claim_of(ctx))
        return error

    def settle(self) -> None:
        """Workers that serve everything go round until there is nothing left to do."""
        self.done.append("settle")
        self.workers.append(self._worker(serves_all=True))
        quiet = 0
        while quiet < LONGEST and self._unended():
            ran = sum(map(self._go_on, self.workers))
            self.check()
            if not ran:
                quiet += 1
                self.clock.advance(1)
        self._check_end()

    def _go_on(self, jobs: Scheduler) -> int:
        """A few rounds of one worker. Returns how many handlers ran."""
        step(jobs)
        ran = run_claimed(jobs)
        for _ in range(5):
            engine_of(jobs).step()
            ran += run_claimed(jobs)
        return ran

    def ends(self) -> Counter[str]:
        return Counter(TaskState.from_code(t.state).value for t in self._tasks())

    # what must hold

    def _tasks(self) -> list[Any]:
        return rows(self.client, f"{_TASKS} ORDER BY id")

    def _edges(self, child: int | None = None) -> list[Edge]:
        """All, or those of one child."""
        if child is None:
            found = rows(self.client, _EDGES)
        else:
            found = rows(self.client, f"{_EDGES} WHERE e.child = :child", child=child)
        return [Edge(c, p, _verdict(state, when, otherwise)) for c, p, when, otherwise, state in found]

    def _not_met(self, edges: Iterable[Edge]) -> list[Edge]:
        """But for those that no longer count."""
        return [e for e in edges if not e.met and (e.child, e.parent) not in self._left_alone]

    def check(self) -> None:
        """What must hold at any moment between two transactions. Raises Wrong."""
        tasks, edges = self._tasks(), self._edges()
        waiting = {t.id for t in tasks if t.state == TaskState.WAITING.code}
        self._left_alone = {pair for pair in self._left_alone if pair[0] not in waiting}  # counted anew
        self._check_counts(tasks, edges)
        self._check_released(tasks, edges)
        self._check_decided(waiting, edges)
        self._check_caps(tasks)
        self._check_workers(tasks)
        if self._wrong:
            raise Wrong("; ".join(self._wrong))

    def _check_counts(self, tasks: list[Any], edges: list[Edge]) -> None:
        """A waiting task counts its open edges, and has some."""
        open_edges = Counter(e.child for e in edges if not e.met)
        for t in tasks:
            if t.state != TaskState.WAITING.code:
                continue
            if t.unmet != open_edges[t.id] or not t.unmet:
                raise Wrong(f"task {t.id} waits for {t.unmet}, it has {open_edges[t.id]} open edges")

    def _check_released(self, tasks: list[Any], edges: list[Edge]) -> None:
        """What may run, or does, has no open edge, and is held once it is due."""
        live = {s.code for s in CLAIMABLE | HELD}
        released = {t.id: t for t in tasks if t.state in live}
        for edge in self._not_met(edges):
            if edge.child in released:
                raise Wrong(f"{released[edge.child]} is released, and {edge} is not met")
        counting = [t.id for t in released.values() if t.unmet]
        if counting:
            raise Wrong(f"tasks {counting} are released, and count open edges")
        early = [t for t in tasks if _held(t) and t.run_at > self.clock.now()]
        if early:
            raise Wrong(f"held before they are due: {early}")

    def _check_decided(self, waiting: set[int], edges: list[Edge]) -> None:
        """Nothing waits whose fate is known."""
        for edge in edges:
            if edge.child in waiting and edge.verdict in (EdgeVerdict.FAIL, EdgeVerdict.SKIP):
                raise Wrong(f"task {edge.child} waits, and {edge} is broken")

    def _check_caps(self, tasks: list[Any]) -> None:
        """A suspect counts where it came from, and all fairness keys of a lane together."""
        held = Counter(base_lane(t.lane) for t in tasks if _held(t))
        for lane, number in held.items():
            most = next((most for kind, most in MOST.items() if lane.startswith(kind)), number)
            if number > most:
                raise Wrong(f"{number} tasks of lane {lane!r} are held, not {most} at most")

    def _check_workers(self, tasks: list[Any]) -> None:
        """Each holds what it serves, no more than it is allowed, and a suspect by itself."""
        workers = {engine_of(jobs).worker: engine_of(jobs).options for jobs in self.workers}
        to_run = [t for t in tasks if _held(t) and (t.id, t.claim) not in self._bodies]
        for worker, options in workers.items():
            mine = [t for t in to_run if t.worker == worker]
            if options.max_concurrent and len(mine) > options.max_concurrent:
                raise Wrong(f"worker {worker} is to run {len(mine)}, not {options.max_concurrent} at most: {mine}")
            if len(mine) > 1 and any(t.lane.startswith(SUSPECT) for t in mine):
                raise Wrong(f"worker {worker} has a suspect beside others: {mine}")
            if "*" not in options.queues and any(t.queue not in options.queues for t in mine):
                raise Wrong(f"worker {worker} serves {options.queues}, and holds {mine}")
        loose = [t for t in tasks if _held(t) and t.worker not in workers]
        if loose:
            raise Wrong(f"held by no live worker: {loose}")

    def _unended(self) -> list[Any]:
        """What can still run. A task that waits for a retry may do so for ever."""
        live = {s.code for s in CLAIMABLE | HELD}
        return [t for t in self._tasks() if t.state in live]

    def _check_end(self) -> None:
        """Everything has ended, each handler is in the history once, and nothing else is said to have succeeded."""
        if self._unended():
            raise Wrong(f"{LONGEST} s of nothing to do, and these have not ended: {self._unended()}")
        history = rows(self.client, "SELECT task_id, claim, outcome FROM schedd_attempts")
        recorded = {(a.task_id, a.claim) for a in history}
        if self._bodies - recorded:
            raise Wrong(f"the history lacks {sorted(self._bodies - recorded)}")
        made_up = {(a.task_id, a.claim) for a in history if a.outcome == _SUCCEEDED} - (self._bodies - self._failures)
        if made_up:
            raise Wrong(f"the history has successes of handlers that failed or never ran: {sorted(made_up)}")
        with self.client.database.read() as tx:
            bad = [f for f in checks.check(tx.at(self.clock.now())) if f.level == checks.PROBLEM]
        if bad:
            raise Wrong(f"doctor: {bad}")


def _claim_of(ctx: Context) -> tuple[int, int]:
    return ctx.id, ctx._attempt.claimed.claim


def _held(row: Any) -> bool:
    return row.state in (TaskState.CLAIMED.code, TaskState.RUNNING.code)


def _verdict(state: int, when: int, otherwise: int) -> EdgeVerdict | None:
    """By the truth table, and not by the mask that was stored with the edge."""
    parent = TaskState.from_code(state)
    return edge_verdict(parent, _WHENS[when], _OTHERWISES[otherwise]) if parent.terminal else None
