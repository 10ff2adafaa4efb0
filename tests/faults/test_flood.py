"""Fairness in a flood: no priority starves, a slow task delays no other one, and urgent tasks start at once."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable

import pytest

from faults.harness import Fleet, all_ended, rows, until
from faults.kinds import Hold, Noop, Work
from scheduler import Scheduler, Task
from scheduler.model.spec import TaskId
from scheduler.ports import SECOND

pytestmark = pytest.mark.faults
SLOTS = {"high": 2, "medium": 3, "low": 2}
PRIORITIES = tuple(SLOTS)
BESIDE = 3000  # tasks beside a slow one
WATCHED = 5  # tasks that each slot of a priority that is not flooded finishes meanwhile


class Flood:
    """Keeps a priority full of 10 ms tasks."""

    def __init__(self, jobs: Scheduler, priority: str, backlog: int = 600) -> None:
        self._jobs = jobs
        self._priority = priority
        self._backlog = backlog
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._pour)

    def _pour(self) -> None:
        number = PRIORITIES.index(self._priority)
        sql = f"SELECT count(*) AS n FROM schedd_tasks WHERE state IN (1, 4, 5) AND priority = {number}"
        while not self._over.wait(0.05):
            missing = self._backlog - rows(self._jobs, sql)[0].n
            if missing > 0:
                with self._jobs.batch() as batch:
                    for _ in range(missing):
                        batch.task(Work(10.0)).priority(self._priority)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.case(60)
@pytest.mark.parametrize("flooded", PRIORITIES)
def test_no_priority_starves_under_a_flood_of_another(
    fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None], flooded: str
) -> None:
    fleet.daemon(ready=True, **{f"pools__{name}__slots": str(n) for name, n in SLOTS.items()})
    others = [priority for priority in PRIORITIES if priority != flooded]
    sql = (
        "SELECT t.priority, count(*) AS n FROM schedd_attempts a JOIN schedd_tasks t ON t.id = a.task_id "
        "WHERE a.finished_at >= :since GROUP BY t.priority"
    )
    with Flood(jobs, flooded):
        until(lambda: len(fleet.started()) > 100, "the flood is on")
        since = jobs.database.now()
        with jobs.batch() as batch:
            for priority in others:
                for _ in range(2 * WATCHED * SLOTS[priority]):
                    batch.task(Work(10.0)).priority(priority)

        def finished() -> dict[str, float]:
            """How many tasks each slot of a priority has finished since, on average."""
            counts = {PRIORITIES[row.priority]: row.n for row in rows(jobs, sql, since=since)}
            return {priority: counts.get(priority, 0) / SLOTS[priority] for priority in PRIORITIES}

        until(lambda: min(finished()[priority] for priority in others) >= WATCHED, "the other priorities get on")
        done = finished()
    shares = ", ".join(f"{priority} {count:.0f}" for priority, count in done.items())
    tell(f"flood of {flooded}: tasks by slot {shares}")
    assert all(100 * done[priority] >= done[flooded] for priority in others), done


@pytest.mark.alone
@pytest.mark.case(64)
def test_one_slow_task_delays_no_other(fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None]) -> None:
    """Against the same flood without it, which takes out what the machine itself is slow at.

    The slow task lasts until all others are done, so it has had every chance to delay them. What a slow task delays
    it delays in each of three floods; a disk that hangs once does not.
    """
    daemon = fleet.daemon()
    _noops(jobs, BESIDE)
    all_ended(jobs)
    waited, paused = _delays(jobs, 0)
    done = "SELECT count(*) AS n FROM schedd_tasks WHERE kind = 'Noop' AND state = 6"
    floods: list[tuple[float, float]] = []
    while len(floods) < 3 and not any(max(flood) <= 0.2 for flood in floods):
        gate, before = f"flood {len(floods)}", rows(jobs, done)[0].n
        slow = _noops(jobs, BESIDE, Hold(gate))[1000]
        daemon.expect("body", task=slow)
        until(lambda: rows(jobs, done)[0].n == before + BESIDE, "all others are done while it runs", every=0.05)  # noqa: B023
        daemon.open(gate)
        all_ended(jobs)
        (row,) = rows(jobs, "SELECT started_at FROM schedd_attempts WHERE task_id = :id", id=slow)
        waited_beside, paused_beside = _delays(jobs, row.started_at)
        tell(
            f"longest from claim to start {waited * 1000:.0f} ms without it, {waited_beside * 1000:.0f} beside it; "
            f"longest pause between starts {paused * 1000:.0f} and {paused_beside * 1000:.0f} ms"
        )
        floods.append((waited_beside - waited, paused_beside - paused))
    longer, wider = min(floods, key=max)
    assert longer <= 0.2
    assert wider <= 0.2


def _noops(jobs: Scheduler, count: int, slow: Task | None = None) -> list[TaskId]:
    with jobs.batch() as batch:
        for index in range(count):
            if index == 1000 and slow is not None:
                batch.task(slow)
            batch.task(Noop())
    return batch.ids


def _delays(jobs: Scheduler, since: int) -> tuple[float, float]:
    """The longest wait of a no-op between claim and start, and the longest pause between starts, in seconds."""
    times = rows(
        jobs,
        "SELECT a.claimed_at, a.started_at FROM schedd_attempts a JOIN schedd_tasks t ON t.id = a.task_id "
        "WHERE t.kind = 'Noop' AND a.started_at > :since ORDER BY a.started_at",
        since=since,
    )
    assert len(times) > 1000, "the flood was over before it began"
    waited = max(t.started_at - t.claimed_at for t in times)
    paused = max(b.started_at - a.started_at for a, b in itertools.pairwise(times))
    return waited / SECOND, paused / SECOND


@pytest.mark.alone
@pytest.mark.case(64)
def test_a_high_task_starts_at_once_in_the_flood(fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None]) -> None:
    fleet.daemon()
    for _ in range(20):
        jobs.task(Work()).priority("high").schedule()  # so that the priority's threads are there
    all_ended(jobs)
    _noops(jobs, 2 * BESIDE)
    left = "SELECT 1 FROM schedd_tasks WHERE kind = 'Noop' AND state = 1 LIMIT 1"
    waits = []
    while rows(jobs, left) and len(waits) < 40:
        task_id = jobs.task(Work()).priority("high").schedule()
        stored = time.monotonic_ns()
        run = until(lambda: fleet.runs(task_id), "it starts", every=0.001)[0]  # noqa: B023
        waits.append((run.start - stored) / 1e6)
    tell(f"{len(waits)} in the flood: median {statistics.median(waits):.1f} ms, longest {max(waits):.1f} ms")
    assert len(waits) >= 5, "the flood was over too soon"
    # 20 ms are promised of a machine that has nothing else to do: the fastest quarter had it to itself. A cycle that
    # is not bounded, or a lost notification, costs hundreds, and always.
    assert statistics.quantiles(waits, n=4)[0] <= 20
