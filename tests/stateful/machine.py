"""The moves: what callers, workers and clocks may do, at random."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stateful.fleet_worker import DURABLE, ENDINGS, NAP
from stateful.world import OTHERWISES, WHENS, Database, World

MOST = 24  # tasks that a run makes by itself
NUMBER = some.integers(0, 999)  # picks one of what there is, whatever there is
PLACE = some.integers(0, 1)
EDGE = some.tuples(some.sampled_from(WHENS), some.sampled_from(OTHERWISES))
PARENTS = some.lists(some.tuples(NUMBER, EDGE), max_size=3)
HOW = some.sampled_from((*ENDINGS, "success", "permanent"))
SPEC = some.fixed_dictionaries(
    {
        "kind": some.sampled_from(("Hard", "Soft")),
        "level": some.integers(0, 2),
        "after": some.sampled_from((0.0, 0.0, 0.0, 3.0, 15.0)),
        "tries": some.sampled_from((1, 2, 3, None)),
        "wait": some.sampled_from((0.5, 4.0)),
        "key": some.sampled_from((None, None, "a", "b")),
        "conflict": some.sampled_from(("keep", "reject", "replace")),
        "retention": some.sampled_from((10.0, 100.0)),
    }
)


class FleetMachine(RuleBasedStateMachine):
    """Needs to be made with a way to get a database, and a counter of transitions."""

    def __init__(self, database: Database, hits: Counter[tuple[str, str]], totals: Counter[str]) -> None:
        super().__init__()
        self.totals = totals
        self.totals["runs"] += 1
        self.sound = True
        self.world = World(database, hits)

    def teardown(self) -> None:
        try:
            if self.sound:
                self.world.settle()
                self.world.compare()
        finally:
            self.world.close()

    def pick(self, number: int) -> int:
        """A task; the newest ones are picked as often as the oldest."""
        ids = self.world.ids
        return ids[number % len(ids)]

    @property
    def tasks(self) -> int:
        return len(self.world.ids)

    # callers

    @precondition(lambda self: self.tasks < MOST)
    @rule(spec=SPEC, parents=PARENTS)
    def schedule(self, spec: dict[str, Any], parents: list[Any]) -> None:
        self.world.schedule([spec | {"edges": self._edges(parents)}])

    def _edges(self, parents: list[Any]) -> dict[int, tuple[str, str]]:
        known = self.world.ids + sorted(self.world.model.gone)
        return {known[n % len(known)]: edge for n, edge in parents} if known else {}

    @initialize(specs=some.lists(SPEC, min_size=3, max_size=5), local=some.lists(some.tuples(NUMBER, EDGE), min_size=4))
    def begin_with(self, specs: list[dict[str, Any]], local: list[Any]) -> None:
        self.schedule_batch(specs, local, [])

    @precondition(lambda self: self.tasks < MOST)
    @rule(specs=some.lists(SPEC, min_size=2, max_size=4), local=some.lists(some.tuples(NUMBER, EDGE)), parents=PARENTS)
    def schedule_batch(self, specs: list[dict[str, Any]], local: list[Any], parents: list[Any]) -> None:
        whole = []
        for place, spec in enumerate(specs):
            edges = self._edges(parents[place : place + 1])
            # Without keys: a builder whose key is held stands for its holder, and an edge to that may be one already.
            whole.append({**spec, "key": None, "edges": edges, "local": {}})
            for number, edge in local[place * 2 : place * 2 + 2]:
                if place:
                    whole[place]["local"][number % place] = edge
        self.world.schedule(whole)

    def replaceable(self) -> list[Any]:
        """Live tasks that hold a key."""
        tasks = self.world.model.tasks
        return [tasks[i] for i in self.world.ids if tasks[i].live and tasks[i].key_at(self.world.now)]

    @precondition(lambda self: self.replaceable())
    @rule(
        number=NUMBER,
        spec=SPEC,
        parents=PARENTS,
        state=some.sampled_from((None, "retry", "retry", "suspended", "waiting", "claimed", "running")),
    )
    def replace(self, number: int, spec: dict[str, Any], parents: list[Any], state: str | None) -> None:
        """One that holds a key gets another set: any of them, or one in this state if there is one."""
        found = self.replaceable()
        found = [t for t in found if t.state == state] or found
        task = found[number % len(found)]
        same = {"kind": task.kind, "key": task.key, "conflict": "replace"}
        self.world.schedule([spec | same | {"edges": self._edges(parents)}])

    @precondition(lambda self: self.tasks)
    @rule(
        number=NUMBER,
        cascade=some.booleans(),
        state=some.sampled_from((None, "retry", "retry", "suspended", "waiting", "claimed")),
    )
    def cancel(self, number: int, cascade: bool, state: str | None) -> None:
        """Any task, or one in this state if there is one."""
        model = self.world.model
        chosen = [i for i in self.world.ids if model.state_of(i) == state] or self.world.ids
        self.world.cancel(chosen[number % len(chosen)], cascade)

    @precondition(lambda self: any(map(self.world.model.may_retry, self.world.ids)))
    @rule(number=NUMBER, downstream=some.sampled_from((True, True, False)), any_state=some.integers(0, 7))
    def retry(self, number: int, downstream: bool, any_state: int) -> None:
        ids = [i for i in self.world.ids if any_state == 0 or self.world.model.may_retry(i)]
        self.world.retry(ids[number % len(ids)], downstream)

    def retriable_children(self) -> list[tuple[int, int]]:
        """(child, parent) that have both ended without success."""
        tasks = self.world.model.tasks
        ended = {i for i, t in tasks.items() if not t.live and t.state != "success"}
        return [(i, p) for i in sorted(ended) for p in tasks[i].edges if p in ended]

    @precondition(lambda self: self.retriable_children())
    @rule(
        number=NUMBER,
        ended=some.sampled_from(("dead", "skipped", "failed")),
        how=some.sampled_from((None, "success", "permanent")),
        place=PLACE,
    )
    def retry_above(self, number: int, ended: str, how: str | None, place: int) -> None:
        """A parent by itself, perhaps until it ends, and then its child (of those that ended so, if there is one)."""
        pairs = self.retriable_children()
        pairs = [pair for pair in pairs if self.world.model.state_of(pair[0]) == ended] or pairs
        child, parent = pairs[number % len(pairs)]
        self.world.retry(parent, downstream=False)
        if how is not None:
            self._see_through(place, parent, how)
        if child in self.world.model.tasks:
            self.world.retry(child, downstream=True)

    @precondition(lambda self: self.tasks < MOST)
    @rule(
        spec=SPEC,
        edge=some.one_of(EDGE, some.just(("success", "skip"))),
        place=PLACE,
        then=some.sampled_from(("nothing", "mend", "mend", "both")),
    )
    def fail_and_tell(self, spec: dict[str, Any], edge: tuple[str, str], place: int, then: str) -> None:
        """A parent that fails for good, and a child that does, too, if it gets to run; then the parent is retried, and
        the child after it, or after its success."""
        plain = spec | {"key": None, "after": 0.0, "level": 0, "edges": {}}
        before = set(self.world.ids)
        self.world.schedule([plain, plain | {"local": {0: edge}}])
        made = sorted(set(self.world.ids) - before)
        for task_id in made:
            self._see_through(place, task_id, "permanent")
        tasks = self.world.model.tasks
        if then != "nothing" and len(made) == 2 and all(i in tasks and self.world.model.may_retry(i) for i in made):
            parent, child = made
            self.world.retry(parent, downstream=False)
            if then == "mend":
                self._see_through(place, parent, "success")
            if child in tasks:
                self.world.retry(child, downstream=True)

    @precondition(lambda self: self.tasks < MOST)
    @rule(spec=SPEC, place=PLACE, then=some.sampled_from(("cancel", "replace", "nothing")))
    def fail_and_cancel(self, spec: dict[str, Any], place: int, then: str) -> None:
        """A task that is cancelled or replaced after its first attempt, most often while it waits for the second."""
        before = set(self.world.ids)
        plain = spec | {"key": "f", "conflict": "keep", "after": 0.0, "level": 0, "tries": None, "edges": {}}
        self.world.schedule([plain])
        for task_id in set(self.world.ids) - before:
            self._see_through(place, task_id, "error")
            if then == "cancel":
                self.world.cancel(task_id, cascade=False)
            elif then == "replace":
                self.world.schedule([plain | {"conflict": "replace"}])

    @precondition(lambda self: self.tasks < MOST)
    @rule(
        spec=SPEC,
        place=PLACE,
        how=some.sampled_from(DURABLE),
        then=some.sampled_from(("cancel", "replace", "emit", "go on", "nothing")),
    )
    def suspend(self, spec: dict[str, Any], place: int, how: str, then: str) -> None:
        """A task that sleeps or awaits an event, and what befalls it then."""
        before = set(self.world.ids)
        plain = spec | {"key": "s", "conflict": "keep", "after": 0.0, "level": 0, "edges": {}}
        self.world.schedule([plain])
        for task_id in set(self.world.ids) - before:
            self._see_through(place, task_id, how)
            if then == "cancel":
                self.world.cancel(task_id, cascade=False)
            elif then == "replace":
                self.world.schedule([plain | {"conflict": "replace"}])
            elif then == "emit":
                self.world.emit(task_id, earlier=0)
            elif then == "go on":
                self.world.pass_time(NAP + 1)

    def _see_through(self, place: int, task_id: int, how: str) -> None:
        """A worker goes round until this task has ended like this, if it can; what else it runs succeeds."""
        seat = self.world.seats[place]
        for _ in range(3):
            task = self.world.model.tasks.get(task_id)
            if task is None or task.state not in ("scheduled", "retry", "claimed", "running"):
                return
            seat.go_round()
            for body in seat.running():
                seat.end(body, how if body.task == task_id else "success")
            seat.step()

    def claimed(self) -> list[int]:
        return [i for i in self.world.ids if self.world.model.tasks[i].claim]

    @precondition(lambda self: self.claimed())
    @rule(number=NUMBER, earlier=some.sampled_from((0, 0, 0, 1)), awaited=some.booleans())
    def emit(self, number: int, earlier: int, awaited: bool) -> None:
        """An event, most often one that a task awaits, if there is one."""
        ids = self.claimed()
        waiting = [i for i in ids if self.world.model.tasks[i].awaits is not None]
        chosen = waiting if awaited and waiting else ids
        self.world.emit(chosen[number % len(chosen)], earlier)

    @precondition(lambda self: self.tasks > 1)
    @rule(child=NUMBER, parent=NUMBER, edge=EDGE)
    def add_dependency(self, child: int, parent: int, edge: tuple[str, str]) -> None:
        self.world.add_dependency(self.pick(child), self.pick(parent), *edge)

    @rule(
        name=some.sampled_from(("hourglass", "bell")),
        kind=some.sampled_from(("Hard", "Soft")),
        every=some.sampled_from((None, 20, 45)),
        catchup=some.sampled_from(("skip", "last", "all", "none")),
        overlap=some.sampled_from(("allow", "skip")),
    )
    def register(self, name: str, kind: str, every: int | None, catchup: str, overlap: str) -> None:
        self.world.register(name, kind, every, catchup, overlap)

    @precondition(lambda self: self.world.model.schedules)
    @rule(number=NUMBER, what=some.sampled_from(("pause", "resume", "trigger", "delete")))
    def change_schedule(self, number: int, what: str) -> None:
        names = sorted(self.world.model.schedules)
        self.world.change_schedule(names[number % len(names)], what)

    @rule(hours=some.sampled_from((0.0, 0.01)))
    def cleanup(self, hours: float) -> None:
        self.world.cleanup(hours)

    # workers

    @rule(place=PLACE)
    def step(self, place: int) -> None:
        self.world.seats[place].step()

    @rule(place=PLACE, number=NUMBER)
    def begin(self, place: int, number: int) -> None:
        """A handler begins; if there is none to begin, the worker looks for work."""
        seat = self.world.seats[place]
        if seat.waiting():
            seat.begin(number)
        else:
            seat.step()

    @rule(place=PLACE, number=NUMBER, how=HOW)
    def end(self, place: int, number: int, how: str) -> None:
        """A handler ends, or, if none is under way, begins."""
        seat = self.world.seats[place]
        if seat.running():
            seat.end(seat.running()[number % len(seat.running())], how)
        else:
            self.begin(place, number)

    @rule(place=PLACE, hows=some.lists(HOW, min_size=1, max_size=6))
    def work(self, place: int, hows: list[str]) -> None:
        """A round of a busy worker: claim, begin, run a moment, end, report."""
        seat = self.world.seats[place]
        seat.go_round()
        for how in hows:
            if seat.waiting():
                seat.begin(0)
            running = seat.running()
            if running:
                seat.end(running[0], how)
        seat.go_round()

    @rule(place=PLACE, found=some.booleans())
    def crash(self, place: int, found: bool) -> None:
        if len(self.world.zombies) < 4:
            self.world.crash(place, found)

    @precondition(lambda self: self.world.zombies)
    @rule(number=NUMBER, how=HOW, late=some.booleans())
    def zombie(self, number: int, how: str, late: bool) -> None:
        """One that was given up for dead stirs: its handler ends, its cycle runs without a look, or it goes round."""
        seat = self.world.zombies[number % len(self.world.zombies)]
        if seat.wid and seat.waiting():
            seat.begin(0)
        if seat.running():
            seat.end(seat.running()[0], how)
        if late and seat.wid:
            seat.late_turn()
        elif not late:
            seat.step()

    # time

    @rule(seconds=some.sampled_from((0.01, 0.7, 2.0, 5.0, 11.0)))
    def advance(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule(seconds=some.sampled_from((5.0, 20.0, 65.0)))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(seconds=some.sampled_from((31.0, 70.0)), place=PLACE)
    def stand_still(self, seconds: float, place: int) -> None:
        """One worker is not heard of for longer than its lease, while the other goes round."""
        while seconds > 0:
            self.world.clock.advance(9.0)
            seconds -= 9.0
            self.world.seats[place].go_round()

    @rule(seconds=some.sampled_from((-100.0, -8.0, 8.0, 100.0)))
    def jump(self, seconds: float) -> None:
        self.world.clock.jump(seconds)

    @invariant()
    def agrees(self) -> None:
        self.totals["steps"] += 1
        self.sound = False  # until it is known
        self.world.compare()
        if self.totals["steps"] % 10 == 0:
            self.world.doctor()
        self.sound = True
