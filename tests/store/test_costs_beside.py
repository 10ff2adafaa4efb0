"""What an engine asks of the database hangs on what can start, not on what waits or is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from scheduler import Context, Scheduler, task
from scheduler.model import state as st
from scheduler.testing import engine_of
from support.fleet import Fleet, let_notifier_work, run_claimed, step, write
from support.plans import Work, work_of

WAITING, KEPT = 40_000, 20_000
MINUTE = 60
YEAR = 365 * 86_400 * 1_000_000


@task
def plain(ctx: Context) -> None: ...


def fill(jobs: Scheduler) -> None:
    """Tasks that wait for a time or for others, and the runs and outcomes of a day."""
    sqlite, now = jobs.database.dialect.name == "sqlite", jobs.database.now()

    def insert(many: int, columns: str, values: str) -> None:
        numbers = (
            "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < :many)"
            if sqlite
            else "WITH g AS (SELECT generate_series(1, CAST(:many AS bigint)) AS i)"
        )
        write(jobs, f"{numbers} INSERT INTO {columns} SELECT {values} FROM g", many=many, now=now)

    common = "schedd_tasks (queue, lane, priority, kind, payload, created_at, claim, state, run_at"
    values = "'default', 'plain', 1, 'plain', '{}', :now - 86400000000, 0"
    insert(WAITING // 2, f"{common})", f"{values}, {st.SCHEDULED}, :now + {YEAR} + i")
    insert(WAITING // 2, f"{common}, unmet)", f"{values}, {st.WAITING}, :now, 1")
    ended = ":now - 86400000000 + i * 1000000"
    insert(
        KEPT,
        f"{common}, finished_at, kept_until, schedule, slot, key)",
        f"{values}, {st.SUCCESS}, {ended}, {ended}, :now + {YEAR}, 's', {ended}, 's@' || i",
    )
    write(jobs, "ANALYZE")


def idle(jobs: Scheduler, fleet: Fleet) -> Work:
    engine = engine_of(jobs)
    with work_of(jobs) as work:
        until = fleet.clock.monotonic() + 2 * MINUTE
        while fleet.clock.monotonic() < until:
            pause = engine.step()
            run_claimed(jobs)
            fleet.clock.advance(max(0.25, pause))
    return work


def busy(jobs: Scheduler) -> Work:
    with work_of(jobs) as work:
        for _ in range(20):
            jobs.task(plain).schedule()
            step(jobs)
            run_claimed(jobs)
            step(jobs)
    return work


def dearer(before: Work, after: Work) -> Counter[str]:
    return Counter({" ".join(text.split()): n - before.by[text] for text, n in after.by.items() if n > before.by[text]})


def test_of_an_engine_beside_a_full_store(fleet: Fleet, tell: Callable[[str], None]) -> None:
    jobs = fleet.worker(plain, lease=30.0)
    jobs.task(plain).key("s").every(20).schedule()
    step(jobs)
    let_notifier_work(jobs)
    idle(jobs, fleet)
    few = idle(jobs, fleet), busy(jobs)
    fill(jobs)
    idle(jobs, fleet)
    many = idle(jobs, fleet), busy(jobs)
    for what, before, after in zip(("at rest", "at work"), few, many, strict=True):
        more = dearer(before, after).most_common(4)
        shown = "\n".join(f"{n}: {text}" for text, n in more)
        tell(f"{what}: {before.done} in an empty store, {after.done} in a full one")
        assert after.done <= 4 * before.done + 500, shown  # to read all that waits once is more
