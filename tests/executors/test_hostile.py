"""A hostile engine under real placers that are killed: no task is lost, and none is recorded or run twice.

``make executors`` and ``make kube`` run it in short, ``make executors-soak`` and ``make kube-soak`` at length;
``PLACEMENTS`` in the environment says how many there are to be, ``SECONDS`` after how long no more tasks are stored.
Each run tells one line: the table in docs/explanation/faults.md.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from scheduler.errors import StoreUnavailableError
from scheduler.executors.ports import ExecutorError
from scheduler.model.outcome import AttemptEnd
from scheduler.model.placement import PlacementPhase
from scheduler.model.state import TaskState
from scheduler.store import reaper
from support.databases import Database
from support.executor_rigs import HOSTILE, HostileRig
from support.hostile import SUBMIT_GRACE_S, make_again
from support.placed import Moment, note
from support.placing import TESTS, Place

SHORT, SHORT_IF_SLOW = 40, 12
LONG = {  # on each database
    "process": 250,
    "warm": 10_000,
    "futures": 250,
    "slurm": 250,
    "ray": 250,
    "kubernetes-real": 250,
}
MOST_S = float(os.environ.get("SECONDS", "inf"))
AT_ONCE = 16  # jobs, or as many as are many for the engine
PLACERS = 2  # one places, the other waits for its lease
LONGEST_S, LONG_S = 0.2, 2.0  # of most bodies, and of the rest
LONG_SHARE = 0.05
LOOK_S = 0.2
LEASE_S = 5  # as support/placing.py has it
STALLED_S = 400.0  # without a task that ends


@dataclass(frozen=True)
class Chances:
    """Of a fault, for each placement: so a run is as hostile on a slow machine."""

    placer_killed: float = 0.01
    job_killed: float = 0.04
    job_frozen: float = 0.01
    engine_restarted: float = 0.01


class Trial:
    """One executor, the placers, and what is done to them."""

    def __init__(self, rig: HostileRig, url: str, directory: Path, seed: int) -> None:
        at_once = min(AT_ONCE, rig.many)
        settings = f"{rig.settings(directory)}max_running = {at_once}\nmax_pending = {at_once}\n"
        self.place = Place(url, directory, settings, holder="test", submit_grace=SUBMIT_GRACE_S)
        self.again = make_again(directory)
        self._rig = rig
        self._backlog = 2 * at_once
        self._url = url
        self._chance = random.Random(seed)
        self._chances = Chances()
        self._frozen: list[tuple[float, list[int]]] = []
        self._started = 0
        self._placers = [self._placer() for _ in range(PLACERS)]
        self.by_hand = self.tasks = 0

    def _placer(self) -> subprocess.Popen[bytes]:
        self._started += 1
        argv = [self._url, str(self.place.directory), f"placer {self._started}", str(self._chance.random())]
        with open(self.place.directory / "placers.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "support.hostile", *argv],
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run(self, placements: int) -> None:
        """Keep tasks coming until there have been so many placements; wait for the end of all."""
        done, before, began = 0, 0, time.monotonic()
        since = began
        while True:
            states, placed = self._counts()
            ended = states[TaskState.SUCCESS]
            if ended > done:
                done, since = ended, time.monotonic()
            assert time.monotonic() - since < STALLED_S, self._told(states)
            if placed < placements and time.monotonic() - began < MOST_S:
                for _ in range(self._backlog - (self.tasks - ended)):
                    longest = LONG_S if self._chance.random() < LONG_SHARE else LONGEST_S
                    self._bear(self.place.jobs.task(Moment(str(self.place.notes), longest)).schedule)
                    self.tasks += 1
            elif ended == self.tasks:
                return
            if states[TaskState.DEAD]:
                self._retry_dead()
            for _ in range(placed - before):
                self._be_hostile()
            before = placed
            self._thaw(time.monotonic())
            self._rig.mend()
            self._bear(lambda: self.place.jobs.database.change(lambda tx: reaper.reap(tx)))
            time.sleep(LOOK_S)

    def _bear(self, work: Callable[[], object]) -> None:
        """A job that is frozen may have SQLite's lock for longer than a program waits for it."""
        while True:
            self._thaw(time.monotonic())
            try:
                work()
            except StoreUnavailableError:
                continue
            return

    def _counts(self) -> tuple[Counter[TaskState], int]:
        with self.place.jobs.database.read() as tx:
            rows = tx.run("SELECT state, count(*) AS number FROM schedd_tasks GROUP BY state")
            states = Counter({TaskState.from_code(row.state): row.number for row in rows})
            (placed,) = tx.run("SELECT count(*) AS number FROM schedd_placements")
        return states, placed.number

    def _retry_dead(self) -> None:
        """Three jobs in a row that did not begin fail a task; an operator retries it."""
        with self.place.jobs.database.read() as tx:
            dead = [row.id for row in tx.run("SELECT id FROM schedd_tasks WHERE state = :dead", dead=_DEAD)]
        for task_id in dead:
            self.by_hand += 1
            self._bear(lambda task_id=task_id: self.place.jobs.retry_task(task_id))

    def _be_hostile(self) -> None:
        chance, chances = self._chance.random, self._chances
        if chance() < chances.placer_killed:
            self._kill_placer(self._chance.randrange(PLACERS))
        if chance() < chances.job_killed:
            self._signal(signal.SIGKILL, "jobs killed")
        if chance() < chances.job_frozen:
            self._signal(signal.SIGSTOP, "jobs frozen")
        if self._rig.restarts and chance() < chances.engine_restarted:
            self._did("engine restarted")
            self._rig.restart()

    def _kill_placer(self, number: int) -> None:
        placer = self._placers[number]
        assert placer.poll() is None, (self.place.directory / "placers.log").read_text()[-2000:]
        self._did("placers killed")
        placer.kill()
        placer.wait()
        self._placers[number] = self._placer()
        # The other one need not wait for the lease: 15 s of doing nothing are no fault.
        self._bear(lambda: self.place.jobs.database.change(lambda tx: tx.run("UPDATE schedd_executors SET until = 0")))

    def _signal(self, number: signal.Signals, fault: str) -> None:
        running = list[str]()
        with suppress(ExecutorError):  # an engine that has just been started again may not answer yet
            running += [seen.name for seen in self.place.engine.inner.observe() if seen.phase is PlacementPhase.RUNNING]
        self._chance.shuffle(running)
        pids = next(filter(None, (self._rig.pids(self.place.directory, name) for name in running)), [])
        if pids:
            self._did(fault)
            _send(pids, number)
            if number == signal.SIGSTOP:
                until = time.monotonic() + LEASE_S * self._chance.uniform(0.2, 3.0)
                self._frozen.append((until, pids))

    def _thaw(self, now: float) -> None:
        for one in [one for one in self._frozen if one[0] <= now]:
            self._frozen.remove(one)
            _send(one[1], signal.SIGCONT)

    def _did(self, fault: str) -> None:
        note(str(self.place.directory / "faults"), fault)

    def _told(self, states: Counter[TaskState]) -> str:
        with self.place.jobs.database.read() as tx:
            left = tx.run("SELECT id FROM schedd_tasks WHERE state <> :done LIMIT 3", done=TaskState.SUCCESS.code)
            ids = [row.id for row in left]
        log = (self.place.directory / "placers.log").read_text()[-1500:]
        tasks = [(self.place.jobs.get_task(one), self.place.placements(one)[-3:]) for one in ids]
        return f"{dict(states)}\n{tasks}\n{self.place.engine.inner.observe()}\n{log}"

    def close(self) -> None:
        """Kill the placers, and end all jobs, also those that were started again."""
        for placer in self._placers:
            placer.kill()
            placer.wait()
        self._thaw(float("inf"))
        try:
            self.again.cancel([one.handle for one in self.again.observe() if not one.phase.over], 0.0)
            self.place.until(lambda: all(one.phase.over for one in self.again.observe()), step=False)
        finally:
            self.again.close()
            self.place.close()
            self._rig.close()

    # What came of it

    def outcomes(self) -> dict[tuple[int, int], AttemptEnd]:
        """How each claim ended."""
        with self.place.jobs.database.read() as tx:
            rows = tx.run("SELECT task_id, claim, outcome FROM schedd_attempts")
            return {(row.task_id, row.claim): AttemptEnd.from_code(row.outcome) for row in rows}


_DEAD = TaskState.DEAD.code


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclass
class Bodies:
    """What the bodies have noted: see Moment. ``beside``: how often one ran while another of its task did."""

    twice: list[tuple[int, int]]  # claims with two bodies
    beside: int
    unexcused: list[tuple[int, int, int]]  # task, claim, and the claim whose body still ran and had lost no lease


def read_bodies(lines: list[str], outcomes: dict[tuple[int, int], AttemptEnd]) -> Bodies:
    found = Bodies([], 0, [])
    began, open_claims = set[tuple[int, int]](), dict[int, set[int]]()
    for line in lines:
        what, task_id, claim, _ = line.split()
        key = (int(task_id), int(claim))
        mine = open_claims.setdefault(key[0], set())
        if what == "begin":
            if key in began:
                found.twice.append(key)
            began.add(key)
            mine.add(key[1])
        elif what == "end":
            mine.discard(key[1])
        else:
            found.beside += 1
            others = mine - {key[1]}
            kept = [other for other in others if outcomes.get((key[0], other)) is not AttemptEnd.LOST]
            found.unexcused += [(*key, other) for other in kept or ([] if others else [0])]
    return found


def test_the_check_of_bodies_finds_what_it_is_to_find() -> None:
    lines = [
        "begin 1 1 10",
        "beside 1 2 11",
        "begin 1 2 11",
        "end 1 1 10",
        "end 1 2 11",
        "begin 2 1 12",
        "begin 2 1 13",
    ]
    found = read_bodies(lines, {(1, 1): AttemptEnd.LOST, (1, 2): AttemptEnd.SUCCEEDED})
    assert found == Bodies([(2, 1)], 1, [])
    found = read_bodies(lines, {(1, 1): AttemptEnd.SUCCEEDED, (1, 2): AttemptEnd.LOST})
    assert found.unexcused == [(1, 2, 1)]


IN_EVERY_RUN = {"warm", "slurm"}  # the quickest, and the one that found most
ENGINES = [
    pytest.param(
        name,
        marks=[getattr(pytest.mark, rig.mark or "executors"), *([] if name in IN_EVERY_RUN else [pytest.mark.full])],
    )
    for name, rig in HOSTILE.items()
]
LENGTHS = [
    pytest.param("short", marks=[pytest.mark.timeout(600)]),
    pytest.param("long", marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
]


@pytest.fixture
def trial(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Trial]:
    seed = int(os.environ.get("SCHEDD_SEED", "7"))
    made = Trial(HOSTILE[request.param](), database.url, tmp_path, seed)
    yield made
    made.close()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("trial", ENGINES, indirect=True)
def test_nothing_is_lost_or_run_twice(
    trial: Trial, length: str, request: pytest.FixtureRequest, tell: Callable[[str], None]
) -> None:
    engine = request.node.callspec.params["trial"]
    began = time.monotonic()
    short = SHORT_IF_SLOW if HOSTILE[engine].slow else SHORT
    trial.run(int(os.environ.get("PLACEMENTS", short if length == "short" else LONG[engine])))
    seconds = time.monotonic() - began
    states, placed = trial._counts()
    outcomes = trial.outcomes()
    recorded = Counter(task_id for (task_id, _), end in outcomes.items() if end is AttemptEnd.SUCCEEDED)
    bodies = read_bodies(trial.place.lines(), outcomes)
    lost = trial.tasks - states[TaskState.SUCCESS]
    doubled = sum(1 for number in recorded.values() if number > 1)
    faults = Counter((trial.place.directory / "faults").read_text().splitlines())
    tell(
        f"{placed} placements of {trial.tasks} tasks, {sum(faults.values())} faults: "
        + ", ".join(f"{number} {what}" for what, number in sorted(faults.items()))
        + f"; {trial.by_hand} retried by hand, {bodies.beside} bodies beside one that had lost its lease, "
        f"{len(bodies.unexcused) + len(bodies.twice)} beside one that had not, "
        f"{lost} lost, {doubled} recorded twice, {seconds:.0f} s"
    )
    assert (bodies.unexcused, bodies.twice) == ([], [])
    assert (lost, doubled, len(recorded)) == (0, 0, trial.tasks)
