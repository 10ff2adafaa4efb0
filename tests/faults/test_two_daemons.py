"""Cases with two real daemons on one PostgreSQL, which all tests here share: one that a test has killed is replaced.

What else needs two real daemons stands elsewhere; ``docs/explanation/fleet.md`` says which test shows which case.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from faults.harness import (
    Fleet,
    Mother,
    Process,
    attempts,
    connect,
    freeze,
    history,
    overlapping,
    rows,
    state,
    until,
)
from faults.kinds import Chatty, Hold, Raises, Segfault, Work
from scheduler import CycleError, Scheduler, SchedulerError
from support.databases import PostgresDatabases
from support.session import shared_directory

pytestmark = [
    pytest.mark.faults,
    pytest.mark.parametrize("dialect", ["postgresql"], indirect=True),
    pytest.mark.usefixtures("dialect"),
]
LEASE = 2.0
SLOTS = 4
ENDED = {"success", "failed", "dead", "cancelled", "skipped"}


class Pair:
    """Two daemons that serve the queue ``default``."""

    def __init__(self, fleet: Fleet, jobs: Scheduler) -> None:
        self.fleet = fleet
        self.jobs = jobs
        self._daemons: list[Process] = []

    def daemon(self, queue: str = "default", *, ready: bool = True) -> Process:
        settings = {"worker__lease": str(LEASE), "worker__queues": f'["{queue}"]', "pools__medium__slots": str(SLOTS)}
        settings |= {"pools__high__slots": "0", "pools__low__slots": "0"}  # those of low would help
        return self.fleet.daemon(ready=ready, **settings)

    def daemons(self) -> tuple[Process, Process]:
        """Both; they are well."""
        self._daemons = [d for d in self._daemons if d.alive()]
        new = [self.daemon(ready=False) for _ in range(2 - len(self._daemons))]
        self._daemons += new
        for daemon in new:
            until(lambda d=daemon: d.lines('"ready"') or not d.alive(), "it is ready")  # type: ignore[misc]
            assert daemon.alive(), daemon.tail()
        first, second = self._daemons
        return first, second

    def by(self, task_id: int) -> tuple[Process, Process]:
        """The daemon in which the newest run of this task is, and the other one."""
        pid = self.fleet.runs(task_id)[-1].pid
        first, second = self._daemons
        return (first, second) if first.pid == pid else (second, first)

    def held(self, count: int, gate: str, what: type[Hold] | type[Chatty] = Hold) -> list[int]:
        """So many handlers that wait at this gate, all under way."""
        with self.jobs.batch() as batch:
            for _ in range(count):
                batch.task(Hold(gate) if what is Hold else Chatty())
        try:
            until(lambda: all(self.fleet.runs(i) for i in batch.ids), "they are under way")
        except AssertionError:
            self.open(gate)  # or the tests that follow find no slot
            raise
        return list(batch.ids)

    def open(self, gate: str = "gate") -> None:
        for daemon in self._daemons:
            daemon.open(gate)

    def states(self, ids: list[int]) -> set[str]:
        return {state(self.jobs, i) for i in ids}

    def ended(self, ids: list[int], timeout: float = 60.0) -> None:
        self.jobs.wait(ids, timeout=timeout)


@pytest.fixture(scope="module")
def pair(postgres_databases: PostgresDatabases, mother: Mother) -> Iterator[Pair]:
    directory = Path(tempfile.mkdtemp(prefix="p", dir=shared_directory()))
    url = postgres_databases.migrated()
    fleet = Fleet(url, directory, mother)
    jobs = connect(url)
    jobs.stop()  # it only schedules
    yield Pair(fleet, jobs)
    jobs.close()
    fleet.close()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.case(2, 3, 4)
def test_one_stands_still_for_longer_than_its_lease(pair: Pair) -> None:
    pair.daemons()
    (task,) = pair.held(1, "gate", Chatty)
    frozen, other = pair.by(task)
    try:
        freeze(frozen, pair.jobs)
        until(lambda: len(pair.fleet.runs(task)) == 2, "the other one runs it")
        (lost,) = attempts(pair.jobs, task)
        assert str(lost.outcome) == "lost"
        assert f":{frozen.pid} " in (lost.error or "")
        frozen.open()
        frozen.kill(signal.SIGCONT)
        until(lambda: frozen.lines("lease was lost"), "it logs the loss")
        other.open()
        pair.ended([task])
        assert history(pair.jobs, task) == [(1, "lost"), (2, "succeeded")]
        stale, run = pair.fleet.runs(task)
        assert stale.end is None, "its progress was taken although the lease was lost"
        assert run.pid == other.pid
        (row,) = rows(pair.jobs, "SELECT progress FROM schedd_tasks WHERE id = :id", id=task)
        assert row.progress == 19
    finally:
        other.open()  # or its slot is taken for good
        frozen.kill()  # it may stand still, and its gate is open for all that come


@pytest.mark.soak
@pytest.mark.case(6)
def test_one_is_killed_between_claim_and_run(pair: Pair) -> None:
    victim, _ = pair.daemons()
    victim.send("arm", point="after claim")
    ids: list[int] = []

    def caught() -> bool:
        ids.append(int(pair.jobs.task(Work()).schedule()))
        return bool(victim.reported("after claim"))

    until(caught, "it has claimed")
    held = rows(pair.jobs, "SELECT id FROM schedd_tasks WHERE state = 4")
    victim.kill()
    pair.ended(ids)
    lost = [i for i in ids if [end for _, end in history(pair.jobs, i)] == ["lost", "succeeded"]]
    assert lost, "nothing was interrupted"
    assert set(lost) <= {row.id for row in held}
    assert {len(pair.fleet.runs(i)) for i in ids} == {1}, "a claim that did not begin ran"


@pytest.mark.soak
@pytest.mark.case(6, 10)
def test_a_queue_that_no_other_worker_serves_gets_back_what_its_daemon_held(pair: Pair) -> None:
    pair.daemons()
    only = pair.daemon("side")
    task = int(pair.jobs.task(Hold()).queue("side").schedule())
    until(lambda: pair.fleet.runs(task), "it is under way")
    only.kill()
    until(lambda: state(pair.jobs, task) == "scheduled", "the daemons of another queue take it back")
    assert history(pair.jobs, task) == [(1, "lost")]
    pair.jobs.cancel_task(task)


@pytest.mark.case(7)
def test_whatever_handlers_raise_both_go_on(pair: Pair) -> None:
    daemons = pair.daemons()
    with pair.jobs.batch() as batch:
        for name in ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "MemoryError", "RecursionError") * 8:
            batch.task(Raises(name))
            batch.task(Work())
    pair.ended(list(batch.ids))
    bad, good = batch.ids[::2], batch.ids[1::2]
    assert pair.states(list(good)) == {"success"}
    assert pair.states(list(bad)) == {"dead"}
    assert {tuple(history(pair.jobs, i)) for i in bad} == {((1, "retried"), (2, "retried"), (3, "dead"))}
    assert all(daemon.alive() for daemon in daemons)


@pytest.mark.case(8)
def test_one_gets_a_sigterm(pair: Pair) -> None:
    pair.daemons()
    running = pair.held(2 * SLOTS, "drain")
    with pair.jobs.batch() as batch:
        for _ in range(6):
            batch.task(Work())
    leaving, other = pair.by(running[0])
    leaving.kill(signal.SIGTERM)
    draining = "SELECT 1 FROM schedd_workers WHERE state = 1 AND pid = :pid"
    until(lambda: rows(pair.jobs, draining, pid=leaving.pid), "it drains")
    leaving.open("drain")
    assert leaving.wait() == 0
    own = [i for i in running if pair.fleet.runs(i)[0].pid == leaving.pid]
    assert len(own) == SLOTS
    assert pair.states(own) == {"success"}
    other.open("drain")
    pair.ended([*running, *batch.ids])
    assert {tuple(history(pair.jobs, i)) for i in (*running, *batch.ids)} == {((1, "succeeded"),)}
    assert {pair.fleet.runs(i)[0].pid for i in batch.ids} == {other.pid}, "it took what was queued"


@pytest.mark.case(9)
def test_both_lose_their_connections(pair: Pair) -> None:
    daemons = pair.daemons()
    running = pair.held(2 * SLOTS, "away")
    ours = "datname = current_database() AND application_name LIKE 'schedd%' AND pid <> pg_backend_pid()"
    for _ in range(3):
        rows(pair.jobs, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
        time.sleep(0.1)
    for daemon in daemons:
        until(lambda d=daemon: d.lines("the database is back"), "it is back")  # type: ignore[misc]
    pair.open("away")
    pair.ended(running)
    assert {tuple(history(pair.jobs, i)) for i in running} == {((1, "succeeded"),)}


@pytest.mark.case(27)
def test_fifty_calls_with_one_key(pair: Pair) -> None:
    pair.daemons()
    together = threading.Barrier(50)

    def call(_: int) -> int:
        together.wait(30)
        return int(pair.jobs.task(Work()).key("one").schedule())

    with ThreadPoolExecutor(50) as threads:
        ids = set(threads.map(call, range(50)))
    assert len(ids) == 1
    (task,) = ids
    pair.ended([task])
    assert rows(pair.jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE key = 'one'")[0].n == 1
    assert len(pair.fleet.runs(task)) == 1


@pytest.mark.case(33)
def test_parents_that_end_while_their_children_are_made(pair: Pair) -> None:
    pair.daemons()
    made: list[tuple[int, int]] = []
    for _ in range(30):
        parent = int(pair.jobs.task(Work()).schedule())
        made.append((parent, int(pair.jobs.task(Work()).depend_on([parent]).schedule())))
    pair.ended([child for _, child in made])
    for parent, child in made:
        assert pair.fleet.runs(child)[0].start >= (pair.fleet.runs(parent)[0].end or 0)
    assert {tuple(history(pair.jobs, i)) for one in made for i in one} == {((1, "succeeded"),)}


@pytest.mark.case(34)
def test_crossing_edges_beside_two_daemons(pair: Pair) -> None:
    pair.daemons()
    ids: list[int] = []
    with ThreadPoolExecutor(2) as threads, connect(pair.fleet.url) as second:
        second.stop()
        for _ in range(5):
            a, b = (int(pair.jobs.task(Work()).after(3600).schedule()) for _ in range(2))
            together = threading.Barrier(2)

            def add(jobs: Scheduler, child: int, parent: int, start: threading.Barrier = together) -> bool:
                start.wait(30)
                try:
                    jobs.add_dependency(child, parent)
                except CycleError:
                    return False
                return True

            sides = [threads.submit(add, pair.jobs, a, b), threads.submit(add, second, b, a)]
            assert sorted(side.result(30) for side in sides) == [False, True]
            assert len(pair.jobs.get_task_dependencies(a) + pair.jobs.get_task_dependencies(b)) == 1
            ids += [a, b]
    for one in ids:
        pair.jobs.cancel_task(one)


@pytest.mark.case(38)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("many", [500, pytest.param(100_000, marks=pytest.mark.soak)], ids=["short", "long"])
def test_a_large_graph_on_both(pair: Pair, many: int, tell: Callable[[str], None]) -> None:
    pair.daemons()
    seed = int(os.environ.get("SCHEDD_SEED", random.randrange(10**6)))
    tell(f"seed {seed} (SCHEDD_SEED={seed} runs it again)")
    rng, begun = random.Random(seed), time.monotonic()
    roots = min(500, many // 5)  # more than one daemon takes at once: who releases a task mostly claims it, too
    ids: list[int] = []
    edges: list[tuple[int, int]] = []
    for first in range(0, many, 10_000):
        with pair.jobs.batch() as batch:
            chosen: list[list[int]] = []
            built: list[Any] = []
            for index in range(first, min(many, first + 10_000)):
                near = range(max(0, index - 500), index)
                chosen.append(rng.sample(near, min(len(near), 3)) if index >= roots else [])
                mine = [built[i - first] if i >= first else ids[i] for i in chosen[-1]]
                built.append(batch.task(Work(1.0)).depend_on(mine))
        ids += batch.ids
        edges += [(ids[p], ids[first + n]) for n, parents in enumerate(chosen) for p in parents]
    left = "SELECT 1 FROM schedd_tasks WHERE id BETWEEN :first AND :last AND state + 0 < 6 LIMIT 1"
    until(lambda: not rows(pair.jobs, left, first=ids[0], last=ids[-1]), "all have ended", timeout=800, every=0.2)
    runs = {i: pair.fleet.runs(i) for i in ids}
    assert all(len(r) == 1 for r in runs.values())
    if many > 10_000:  # else one of them may be through before the other has woken
        assert {r[0].pid for r in runs.values()} == {d.pid for d in pair.daemons()}
    late = [(p, c) for p, c in edges if runs[c][0].start < (runs[p][0].end or 0)]
    assert not late, late[:10]
    tell(f"{many:,} tasks and {len(edges):,} edges in {time.monotonic() - begun:.1f} s, each edge respected")


@pytest.mark.case(42)
def test_each_slot_fires_once(pair: Pair) -> None:
    pair.daemons()
    with ThreadPoolExecutor(4) as threads, connect(pair.fleet.url) as second:
        second.stop()

        def boot(jobs: Scheduler) -> None:
            jobs.task(Work()).key("tick").every(1).schedule()

        list(threads.map(boot, [pair.jobs, second] * 2))
    fired = "SELECT id, slot FROM schedd_tasks WHERE schedule = 'tick' ORDER BY slot"
    until(lambda: len(rows(pair.jobs, fired)) >= 3, "it fires")
    assert len(pair.jobs.schedules.list()) == 1
    pair.jobs.schedules.delete("tick")
    slots = [row.slot for row in rows(pair.jobs, fired)]
    apart = [later - slot for slot, later in pairwise(slots)]
    assert all(one > 0 and one % 1_000_000 == 0 for one in apart), apart  # a busy machine may skip some


@pytest.mark.soak
@pytest.mark.case(47)
def test_clocks_jump_an_hour_while_both_work(pair: Pair) -> None:
    first, second = pair.daemons()
    running = pair.held(2 * SLOTS, "jump")
    first.send("clock", offset=3600)
    second.send("clock", offset=-3600)
    for daemon in (first, second):
        until(lambda d=daemon: d.lines("the clock jumped"), "it notices")  # type: ignore[misc]
    time.sleep(1.2 * LEASE)  # real leases run out in real time
    assert pair.states(running) == {"running"}
    pair.open("jump")
    pair.ended(running)
    assert {tuple(history(pair.jobs, i)) for i in running} == {((1, "succeeded"),)}
    for daemon in (first, second):
        daemon.send("clock", offset=0)


@pytest.mark.case(49)
def test_cancels_beside_completions(pair: Pair) -> None:
    pair.daemons()
    with pair.jobs.batch() as batch:
        for _ in range(200):
            batch.task(Work(2.0))
    for one in batch.ids:
        try:
            pair.jobs.cancel_task(one)
        except SchedulerError:
            assert state(pair.jobs, one) == "success"
    pair.ended(list(batch.ids))
    found = Counter(state(pair.jobs, i) for i in batch.ids)
    assert set(found) <= {"success", "cancelled"}
    for one in batch.ids:
        ends = [end for _, end in history(pair.jobs, one)]
        assert ends in ([], ["cancelled"]) if state(pair.jobs, one) == "cancelled" else ends == ["succeeded"]


@pytest.mark.case(65)
def test_a_session_holds_an_open_insert(pair: Pair) -> None:
    pair.daemons()
    (parent,) = pair.held(1, "open")
    engine = sa.create_engine(pair.fleet.url)
    with engine.connect() as session:
        child = int(pair.jobs.task(Work()).depend_on([parent]).schedule(connection=session))
        pair.open("open")
        until(lambda: pair.fleet.runs(parent)[0].end, "the parent's handler has ended")
        for _ in range(5):
            pair.ended([int(pair.jobs.task(Work()).schedule()) for _ in range(2 * SLOTS)])
        assert state(pair.jobs, parent) in {"claimed", "running"}, "its end was recorded past the open insert"
        session.commit()
    engine.dispose()
    pair.ended([parent, child])
    assert {tuple(history(pair.jobs, i)) for i in (parent, child)} == {((1, "succeeded"),)}


@pytest.mark.soak
@pytest.mark.case(66)
def test_a_segfault_kills_no_bystander_for_good(pair: Pair) -> None:
    pair.daemons()
    with pair.jobs.batch() as batch:
        good = [batch.task(Work(40.0)) for _ in range(8)]
        batch.task(Segfault())
        good += [batch.task(Work(40.0)) for _ in range(8)]
    culprit = batch.ids[8]
    ids = [i for i in batch.ids if i != culprit]
    deaths = 0

    def over() -> bool:
        nonlocal deaths
        deaths += sum(not daemon.alive() for daemon in pair._daemons)
        pair.daemons()  # as systemd restarts them
        assert deaths <= 4, "they go on dying"
        return pair.states(list(batch.ids)) <= ENDED

    until(over, "all have ended", timeout=60)
    assert pair.states(ids) == {"success"}
    assert state(pair.jobs, culprit) == "dead"
    assert deaths, "no worker died"
    assert not [i for i in ids if list(overlapping(pair.fleet.runs(i)))]
