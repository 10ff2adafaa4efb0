"""What schedd should do, as docs/reference/states.md says, written for clarity: one task at a time, plain loops.

Nothing here comes from ``scheduler``: the tables are its own. Times are microseconds. The model does not choose which
due task a worker claims: the test names it, and the model says whether that was allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from scheduler.ports import FOREVER
from stateful.recurring import Recurring

SECOND = 1_000_000

# old state -> states that may follow
STEPS = {
    "waiting": {"scheduled", "failed", "skipped", "cancelled"},
    "scheduled": {"claimed", "waiting", "cancelled"},
    "retry": {"claimed", "scheduled", "cancelled"},
    "suspended": {"claimed", "scheduled", "cancelled"},
    "claimed": {"running", "scheduled", "success", "failed", "dead", "retry", "suspended", "cancelled"},
    "running": {"scheduled", "success", "failed", "dead", "retry", "suspended", "cancelled"},
    "success": set(),
    "failed": {"scheduled", "waiting"},
    "dead": {"scheduled", "waiting"},
    "cancelled": {"scheduled", "waiting"},
    "skipped": {"scheduled", "waiting"},
}
TABLE = [(old, new) for old, all_new in STEPS.items() for new in sorted(all_new)]
ENDS = {"success", "failed", "dead", "cancelled", "skipped"}
HELD = {"claimed", "running"}
BAD = {"failed", "dead", "cancelled"}
ALONE_FOR = 10.0  # seconds that a suspect runs by itself
SUSPECT_TWICE = 2
DEATHS = 3
CRASHES = 3  # attempts that a worker's death does not end, however few are allowed


class Wrong(AssertionError):
    """The scheduler did what the model does not allow."""


def judge(parent: str, when: str, otherwise: str) -> str:
    """What a parent's state means for one edge: met, open, fail or skip. The table of the design, row by row."""
    if parent not in ENDS:
        return "open"
    if when == "finished":
        return "met"
    if parent == "skipped":
        return {"run": "met", "wait": "open"}.get(otherwise, "skip")
    if (parent == "success") == (when == "success"):
        return "met"
    return {"run": "met", "wait": "open", "fail": "fail", "skip": "skip"}[otherwise]


@dataclass
class Set:
    """What a call with conflict="replace" brings: the part of a task that is not who it is."""

    level: int
    run_at: int
    edges: dict[int, tuple[str, str]]
    tries: int | None
    wait: int
    retention: int


@dataclass
class Task:
    id: int
    kind: str
    level: int
    run_at: int
    edges: dict[int, tuple[str, str]]
    tries: int | None = 1
    wait: int = 0  # before the second attempt; doubles
    dead_letter: bool = True
    result_ttl: int = 86_400 * SECOND
    key: str | None = None
    retention: int = 86_400 * SECOND
    slot: tuple[str, int] | None = None
    # as it goes
    state: str = "waiting"
    holds_key: bool = False
    key_until: int | None = None
    result_until: int = 0
    finished_at: int | None = None
    attempt: int = 0
    base: int = 0
    claim: int = 0
    worker: int | None = None
    begun: bool = False  # claimed since it was stored or reopened: edges no longer matter
    cancel_asked: bool = False
    asked_at: int = 0  # when it was cancelled, or asked to end
    cascade: bool = False
    ended_by: set[int] = field(default_factory=set)  # any of these may be named
    awaits: str | int | None = None  # the event, or the task whose end, that wakes it while it is suspended
    spawned_by: int | None = None
    suspect: int = 0
    deaths: int = 0
    alone: bool = False
    history: list[tuple[int, int, str]] = field(default_factory=list)  # (claim, number, end)
    aside: Set | None = None  # replaced while a worker holds it: takes its place when the attempt ends
    again: bool = False  # and is to run then, unless it was cancelled since
    replaced: int = 0
    late: bool = False  # was kept for a child that did not succeed, so it may stay for a day more

    @property
    def all_edges(self) -> dict[int, tuple[str, str]]:
        """With those of the set that is put aside: they keep their parents, and close no cycle."""
        return self.edges if self.aside is None else self.aside.edges | self.edges

    def ask_to_end(self, now: int) -> None:
        self.asked_at = self.asked_at if self.cancel_asked else now
        self.cancel_asked, self.again = True, False

    def slot_of(self, schedule: str) -> bool:
        return self.slot is not None and self.slot[0] == schedule

    @property
    def live(self) -> bool:
        return self.state not in ENDS

    def key_at(self, now: int) -> str | None:
        """The key that it keeps others from taking."""
        if self.state == "success" and self.key_until is not None and self.key_until <= now:
            return None
        return self.key if self.holds_key else None

    def has_key_of(self, task: Task, now: int) -> bool:
        """Whether it keeps that one from running again under its key."""
        return self.id != task.id and (
            (self.kind == task.kind and self.key_at(now) == task.key) or self.completed_after(task)
        )

    def completed_after(self, task: Task) -> bool:
        """Whether it has succeeded under the key of that one, which ended otherwise before."""
        same = self.key is not None and (self.kind, self.key) == (task.kind, task.key)
        ends = (self.finished_at or 0) > (task.finished_at or 0)
        return same and self.state == "success" and (self.id > task.id or ends)


@dataclass
class Outcome:
    """What a handler said when it ended, with the claim that it ran under."""

    task: int
    claim: int
    number: int
    state: str
    end: str
    started: bool
    finished_at: int
    run_at: int | None = None
    refund: int = 0
    awaits: str | int | None = None


class Model:
    def __init__(self, hits: Counter[tuple[str, str]]) -> None:
        self.tasks: dict[int, Task] = {}
        self.gone: dict[int, tuple[str, int]] = {}  # removed: its outcome, when
        self.schedules: dict[str, Recurring] = {}
        self.events: set[str] = set()
        self.watched: dict[tuple[int, int], int] = {}  # (task, claim) -> the child that it awaits, until that ends
        self.hits = hits

    # states and edges

    def move(self, task: Task, new: str) -> None:
        if new not in STEPS[task.state]:
            raise Wrong(f"task {task.id}: no step from {task.state} to {new}")
        self.hits[task.state, new] += 1
        task.state = new
        if new in ENDS - {"success"}:
            task.holds_key = False

    def state_of(self, task_id: int) -> str:
        return self.tasks[task_id].state if task_id in self.tasks else self.gone[task_id][0]

    def verdicts(self, task: Task, parents: Iterable[int] | None = None) -> dict[int, str]:
        chosen = task.edges if parents is None else set(parents) & task.edges.keys()
        verdicts = {p: judge(self.state_of(p), *task.edges[p]) for p in sorted(chosen)}
        # Of what is gone there is no retry to wait for.
        return {p: "fail" if p in self.gone and verdict == "open" else verdict for p, verdict in verdicts.items()}

    def open_edges(self, task: Task) -> int:
        return sum(verdict != "met" for verdict in self.verdicts(task).values())

    def broken(self, task: Task, parents: Iterable[int] | None = None) -> tuple[str, set[int]] | None:
        """How its edges end it, if they do: failing weighs more than skipping."""
        verdicts = self.verdicts(task, parents)
        for word, state in (("fail", "failed"), ("skip", "skipped")):
            if word in verdicts.values():
                return state, {p for p, verdict in verdicts.items() if verdict == word}
        return None

    def children(self, parents: Iterable[int]) -> list[Task]:
        wanted = set(parents)
        return [t for t in self.tasks.values() if wanted & t.all_edges.keys()]

    def release(self, ended: Iterable[int], now: int) -> None:
        """Tasks have ended: what that means for those that wait for them, level by level."""
        level = set(ended)
        level |= self.cascade(level, now)
        while level:
            waiting = [t for t in self.children(level) if t.state == "waiting"]
            ends = {t.id: self.broken(t, level) for t in waiting}
            following = set()
            for task in waiting:
                end = ends[task.id]
                if end is not None:
                    self.end_by_edge(task, end, now)
                    following.add(task.id)
            following |= self.cancel_spawned(level, now)
            self.wake(level, now)
            for task in waiting:
                if task.state == "waiting" and self.open_edges(task) == 0:
                    self.move(task, "scheduled")
            level = following

    def cancel_spawned(self, ended: Iterable[int], now: int) -> set[int]:
        """What the handlers of those that ended cancelled have spawned ends with them; returns what did so at once."""
        cancelled = {i for i in ended if self.state_of(i) == "cancelled"}
        found = set()
        for task in [t for t in self.tasks.values() if t.live and t.spawned_by in cancelled]:
            if task.state in HELD:
                task.ask_to_end(now)
            else:
                self.move(task, "cancelled")
                task.finished_at = task.asked_at = now
                found.add(task.id)
        return found

    def wake(self, ended: set[int], now: int) -> None:
        """Make each task that awaits one of these due, if it is not already."""
        self.watched = {who: child for who, child in self.watched.items() if child not in ended}
        for t in self.tasks.values():
            if t.state == "suspended" and t.awaits in ended:
                t.run_at = min(t.run_at, now)

    def cascade(self, ended: Iterable[int], now: int) -> set[int]:
        """What waits for the success of these is cancelled with them, where their cancel asked for that."""
        found: set[int] = set()
        level = {i for i in ended if self.tasks[i].state == "cancelled" and self.tasks[i].cascade}
        while level:
            below = {t.id: t for p in level for t in self.children([p]) if t.live and t.all_edges[p][0] == "success"}
            level = set()
            for task in below.values():
                task.cascade = True
                if task.state in HELD:
                    task.ask_to_end(now)
                else:
                    self.move(task, "cancelled")
                    task.finished_at = task.asked_at = now
                    level.add(task.id)
            found |= level
        return found

    def end_by_edge(self, task: Task, end: tuple[str, set[int]], now: int) -> None:
        self.move(task, end[0])
        task.ended_by, task.finished_at = end[1], now

    # what callers do

    def holder(self, kind: str, key: str, now: int) -> Task | None:
        return next((t for t in self.tasks.values() if t.kind == kind and t.key_at(now) == key), None)

    def free_expired(self, kind: str, key: str | None, now: int) -> None:
        for t in self.tasks.values():
            if t.kind == kind and t.key == key and t.key_at(now) is None:
                t.holds_key = False

    def store(self, task: Task, now: int) -> None:
        """Store a new task. No other task holds its key, if it has one."""
        if task.key is not None:
            self.free_expired(task.kind, task.key, now)
        self.tasks[task.id] = task
        end = self.broken(task)
        if end is not None:
            task.state, task.ended_by, task.finished_at = end[0], end[1], now
            return
        task.holds_key = task.key is not None
        task.state = "waiting" if self.open_edges(task) else "scheduled"

    def replace(self, task_id: int, new: Set, now: int) -> None:
        """A call with the key of this live task, that is to replace it."""
        task = self.tasks[task_id]
        task.replaced += 1
        if task.state in HELD:
            task.aside, task.again = new, True
        else:
            self.put_in_place(task, new, now)

    def put_in_place(self, task: Task, new: Set, now: int) -> None:
        """The new set instead of the old one; one that was cancelled meanwhile stays so."""
        task.level, task.edges, task.tries, task.wait, task.retention = (
            *(new.level, new.edges, new.tries, new.wait, new.retention),
        )
        task.run_at, task.base, task.aside, task.again = max(new.run_at, now), task.attempt, None, False
        task.begun, task.suspect, task.deaths, task.alone, task.key_until = False, 0, 0, False, None
        if not task.live:
            return
        task.cancel_asked, task.cascade, task.asked_at = False, False, 0
        if task.state in ("retry", "suspended"):
            self.move(task, "scheduled")
        end, wanted = self.broken(task), "waiting" if self.open_edges(task) else "scheduled"
        if end is not None and task.state == "scheduled":
            self.move(task, "waiting")
        if end is not None:
            self.end_by_edge(task, end, now)
            self.release([task.id], now)
        elif task.state != wanted:
            self.move(task, wanted)

    def settle(self, held: Iterable[Task], now: int) -> None:
        """Attempts of these have ended, and what follows for others is done."""
        for task in sorted(held, key=lambda t: t.id):
            if task.aside is not None:
                self.put_in_place(task, task.aside, now)

    def cancel(self, task_id: int, cascade: bool, now: int) -> None:
        task = self.tasks[task_id]
        if not task.live:
            return
        task.cascade = task.cascade or cascade
        if task.state in HELD:
            task.ask_to_end(now)
        else:
            self.move(task, "cancelled")
            task.finished_at = task.asked_at = now
            self.release([task_id], now)

    def may_retry(self, task_id: int) -> bool:
        return self.tasks[task_id].state in {"scheduled", "retry"} | (ENDS - {"success"})

    def retry(self, task_id: int, downstream: bool, now: int) -> None:
        task = self.tasks[task_id]
        task.run_at, task.base = min(task.run_at, now) if task.live else now, task.attempt
        if task.live:
            return
        revived, spawned = [task_id], self.cancelled_with([task_id])
        level = [task_id]
        while downstream and (ended := (self.ended_below(level) | spawned) - set(revived)):
            ended = self.with_keys(ended, revived, now)
            spawned, level = self.cancelled_with(ended), sorted(ended)
            revived += level
        before = {}
        for i in [task_id, *sorted(revived[1:])]:  # in the order in which they take their keys
            t = self.tasks[i]
            before[i], t.state = t.state, "waiting"
            t.base, t.begun, t.cancel_asked, t.ended_by, t.finished_at = t.attempt, False, False, set(), None
            t.suspect, t.deaths, t.alone, t.result_until, t.cascade = 0, 0, False, 0, False
            t.run_at, t.asked_at = now if t.run_at >= FOREVER else t.run_at, 0
            if t.key is not None:
                self.free_expired(t.kind, t.key, now)
                t.holds_key, t.key_until = True, None
        self.judge_again(revived, before, now)

    def other(self, task: Task, now: int) -> Task | None:
        """The task that keeps this one, which has ended, from running again under its key."""
        return next((t for t in self.tasks.values() if task.key is not None and t.has_key_of(task, now)), None)

    def with_keys(self, ended: set[int], revived: list[int], now: int) -> set[int]:
        """Without those whose keys are not free, and what ended because of these."""
        taken = {(self.tasks[i].kind, self.tasks[i].key) for i in revived}
        left: set[int] = set()
        while True:
            first: dict[tuple[str, str | None], int] = {}
            for i in sorted(ended):
                first.setdefault((self.tasks[i].kind, self.tasks[i].key), i)
            refused = {
                i
                for i in ended
                if (t := self.tasks[i]).key is not None
                and (first[t.kind, t.key] != i or (t.kind, t.key) in taken or self.other(t, now))
            }
            if not refused:
                return ended
            left |= refused
            ended = ended - left - self.ended_below(left)

    def ended_below(self, ids: Iterable[int]) -> set[int]:
        """What ended because of these, and so on down."""
        found, level = set[int](), set(ids)
        while level:
            level = {t.id for t in self.children(level) if not t.live and t.ended_by & level} - found
            found |= level
        return found

    def cancelled_with(self, parents: Iterable[int]) -> set[int]:
        """What those of these that ended cancelled had spawned, and that was cancelled with them."""
        found = set()
        for p in (self.tasks[i] for i in parents if self.tasks[i].state == "cancelled"):
            for t in (t for t in self.tasks.values() if t.spawned_by == p.id and t.state == "cancelled"):
                if t.asked_at and t.asked_at >= (p.finished_at or 0):
                    found.add(t.id)
        return found

    def judge_again(self, changed: list[int], before: dict[int, str], now: int) -> None:
        """Count the edges anew of these and of what waits for them, unless it was claimed already."""
        affected = {t.id: t for t in self.children(changed)} | {i: self.tasks[i] for i in changed}
        affected = {i: t for i, t in affected.items() if t.state in ("waiting", "scheduled") and not t.begun}
        ends = {i: self.broken(t) for i, t in affected.items()}
        for i, t in sorted(affected.items()):
            new = "waiting" if self.open_edges(t) else "scheduled"
            if i in before:
                t.state = before[i]
            if t.state != new:
                self.move(t, new)
        ended = []
        for i, end in ends.items():
            if end is not None:
                self.end_by_edge(affected[i], end, now)
                ended.append(i)
        self.release(ended, now)

    def reaches(self, start: int, goal: int) -> bool:
        """Whether edges lead down from ``start`` to ``goal``."""
        seen, level = {start}, {start}
        while level:
            level = {t.id for t in self.children(level)} - seen
            seen |= level
        return goal in seen

    def may_depend(self, child: int) -> bool:
        task = self.tasks[child]
        return task.state in ("waiting", "scheduled") and not task.begun

    def add_edge(self, child: int, parent: int, edge: tuple[str, str], now: int) -> None:
        self.tasks[child].edges[parent] = edge
        self.judge_again([child], {}, now)

    def emit(self, event: str, now: int) -> None:
        """Once and for all; who awaits it is due, if it is not already."""
        if event in self.events:
            return
        self.events.add(event)
        for t in self.tasks.values():
            if t.state == "suspended" and t.awaits == event:
                t.run_at = min(t.run_at, now)

    # what engines do

    def tick(self, now: int, grace: int) -> list[tuple[str, int]]:
        """The (schedule, slot) that are to be made now."""
        made = []
        for one in sorted(self.schedules.values(), key=lambda s: (s.next_at, s.name)):
            if one.paused or one.next_at > now:
                continue
            present = {t.slot for t in self.tasks.values()}
            slots = [s for s in one.fires(now, grace) if (one.name, s) not in present]
            if one.overlap == "skip":
                last = self.tasks.get(one.last_task or 0)
                slots = [] if last is not None and last.live else slots[-1:]
            made += [(one.name, slot) for slot in slots]
        return made

    def make_slot(self, task_id: int, slot: tuple[str, int], key: str | None, now: int) -> None:
        one = self.schedules[slot[0]]
        one.last_task = task_id
        made = Task(task_id, one.kind, one.level, now, {}, key=key, slot=slot, **one.options)
        self.store(made, now)

    def finish(self, worker: int, outcomes: Iterable[Outcome], now: int) -> None:
        """Only the holder of the newest claim can record anything."""
        ended, recorded = [], []
        for o in outcomes:
            t = self.tasks.get(o.task)
            if t is None or t.state not in HELD or (t.worker, t.claim) != (worker, o.claim):
                continue
            recorded.append(t)
            state, end = ("cancelled", "cancelled") if t.cancel_asked else (o.state, o.end)
            if t.again:  # nothing that the attempt says decides what becomes of the task
                state, end = "scheduled", "replaced" if o.end in ("retried", "failed", "dead", "suspended") else o.end
            if o.started:
                t.history.append((o.claim, o.number, end))
            t.worker = None
            t.attempt -= o.refund
            t.run_at = t.run_at if o.run_at is None else o.run_at
            if o.started:
                t.suspect, t.alone = 0, False
            if state == "success":
                kept = t.retention if t.holds_key else 0
                t.result_until = now + max(t.result_ttl, kept)
                t.key_until = now + t.retention if t.holds_key else None
            self.move(t, state)
            t.awaits = o.awaits if state == "suspended" else None
            child = isinstance(t.awaits, int) and (t.id, o.claim) not in self.watched
            if t.awaits in self.events or child:  # it has happened since the handler asked
                t.run_at = min(t.run_at, now)
            if not t.live:
                t.finished_at = o.finished_at
                ended.append(t.id)
        self.release(ended, now)
        self.settle(recorded, now)

    def take_back(self, worker: int, now: int) -> None:
        """This worker is dead: what it held goes back; suspects run alone, and dying alone three times is the end.

        So is its death in the last attempt that is allowed, if that is the third at least.
        """
        ended = []
        held = sorted((t for t in self.tasks.values() if t.worker == worker), key=lambda t: t.id)
        for t in held:
            t.history.append((t.claim, t.attempt, "lost"))
            t.deaths += t.alone
            t.suspect += 1
            allowed = max(t.tries, CRASHES) if t.tries not in (None, 1) else None
            spent = t.state == "running" and allowed is not None and t.attempt - t.base >= allowed
            t.base += t.state == "claimed"
            t.worker = None
            if t.again:
                self.move(t, "scheduled")
            elif t.cancel_asked:
                self.move(t, "cancelled")
            elif t.deaths >= DEATHS or spent:
                self.move(t, "dead" if t.dead_letter else "failed")
            else:
                self.move(t, "scheduled")
                t.alone = t.alone or t.suspect >= SUSPECT_TWICE
            if not t.live:
                t.finished_at = now
                ended.append(t.id)
        self.release(ended, now)
        self.settle(held, now)

    def happened(self, t: Task) -> bool:
        """Whether what this task awaits is there."""
        if isinstance(t.awaits, int):
            return t.awaits not in self.tasks or not self.tasks[t.awaits].live
        return t.awaits in self.events

    def claimed(self, task_id: int, claim: int, worker: int, now: int, *, woken_again: bool) -> Task:
        """A worker has claimed this task: only what is due, ready and free, and with a new number.

        ``woken_again``: what has been woken is, after the clock went back, as if it had been overlooked (PostgreSQL).
        """
        t = self.tasks[task_id]
        if t.state not in ("scheduled", "retry", "suspended"):
            raise Wrong(f"task {task_id} was claimed while {t.state}")
        if t.run_at > now and not (woken_again and t.state == "suspended" and self.happened(t)):
            raise Wrong(f"task {task_id} was claimed {(t.run_at - now) / SECOND} s before its time")
        t.run_at = min(t.run_at, now)
        if not t.begun and self.open_edges(t):
            raise Wrong(f"task {task_id} was claimed with open edges {self.verdicts(t)}")
        if claim != t.claim + 1:
            raise Wrong(f"task {task_id}: claim {claim} follows {t.claim}")
        t.attempt += t.state != "suspended"  # which goes on with the attempt that it was in
        self.move(t, "claimed")
        t.claim, t.worker, t.begun, t.awaits = claim, worker, True, None
        return t

    def sweep(
        self,
        now: int,
        stored: Collection[int],
        success: float,
        failed: float,
        outcomes: float,
        *,
        late: bool = False,
        by_age: bool = False,
    ) -> None:
        """Remove what has outlived its retention and that nothing live refers to; forget old outcomes.

        Of those that may stay longer, what is no longer ``stored``. ``late``: only these, which go between sweeps, too.
        ``by_age``: a result goes with its task.
        """
        needed = {p for t in self.tasks.values() if t.live for p in t.all_edges}
        unfinished = {t.id for t in self.tasks.values() if t.state != "success"}
        needed |= {t.id for t in self.tasks.values() if t.spawned_by in unfinished}
        for t in self.tasks.values():  # whose child may be retried, and read its result
            if t.state in ENDS and t.state != "success":
                goes = not late and t.id not in needed and (t.finished_at or now) < now - failed * SECOND
                starts_it = [
                    p for p, (when, other) in t.edges.items() if when in ("success", "finished") or other == "run"
                ]
                for p in starts_it:
                    if p in self.tasks and self.tasks[p].state == "success":
                        self.tasks[p].late = True
                        if not goes:  # or both go at once
                            needed.add(p)
            for o in self.tasks.values():  # what has completed under the key of one that may be retried
                if t.state in ENDS and t.state != "success" and o.completed_after(t):
                    o.late = True
                    if not goes:
                        needed.add(o.id)
        expired = []
        for t in self.tasks.values():
            kept = success if t.state == "success" else failed
            if t.live or t.id in needed or t.finished_at is None or t.finished_at >= now - kept * SECOND:
                continue
            if t.state == "success" and ((t.result_until > now and not by_age) or (t.key_until or 0) > now):
                continue
            if (t.late and t.id in stored) or (late and not t.late):
                continue
            expired.append(t.id)
        for i in expired:
            self.gone[i] = (self.tasks.pop(i).state, now)
        if late:
            return
        named = {p for t in self.tasks.values() for p in t.all_edges}
        for i in [i for i, (_, at) in self.gone.items() if at < now - outcomes * SECOND and i not in named]:
            del self.gone[i]
