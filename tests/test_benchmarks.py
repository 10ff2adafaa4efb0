"""The benchmark's own parts: what it compares is comparable, and what it says follows from what was measured."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.testing import FakeClock, drain
from support.databases import Database

HERE = Path(__file__).parents[1] / "benchmarks"
LOCAL = (
    "bench",
    "contenders",
    "report",
    "stages",
    "works",
    "curves",
    "pages",
    "cpu_profile",
    "servers",
    "start_causes",
    "scale",
    "large",
    "messages",
)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the benchmarks, which are no package, and leaves no trace of it."""
    monkeypatch.syspath_prepend(str(HERE))
    yield importlib.import_module
    for name in [name for name in sys.modules if name.partition(".")[0] in LOCAL]:
        del sys.modules[name]


@task
def noop(ctx: Context, n: int, text: str = "") -> None:
    """Does nothing."""


def written(url: str, table: str) -> tuple[int, set[frozenset[str]]]:
    """How many rows there are, and which columns are set in them."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            rows = connection.execute(sa.text(f"SELECT * FROM {table}")).mappings().all()
    finally:
        engine.dispose()
    return len(rows), {frozenset(name for name, value in row.items() if value is not None) for row in rows}


@pytest.mark.parametrize("graph", [False, True])
def test_the_raw_loop_writes_what_the_engine_writes(database: Database, local: Any, graph: bool) -> None:
    raw = local("contenders.raw")
    given = database.url.replace("+psycopg", "")
    assert (raw.dag if graph else raw.drain)(given, 250) > 0
    tasks, attempts = written(database.url, "schedd_tasks"), written(database.url, "schedd_attempts")
    assert tasks[0] == attempts[0] == 250

    jobs = Scheduler.for_testing(url=database.url, clock=FakeClock())
    jobs.register(noop)
    with jobs.database.write() as tx:
        for table in ("schedd_tasks", "schedd_attempts", "schedd_edges"):
            tx.connection.execute(sa.text(f"DELETE FROM {table}"))
    with jobs.batch() as batch:
        builders = [batch.task(noop, n, "hello world") for n in range(3)]
        if graph:
            builders[2].depend_on(builders[:2])
    drain(jobs)
    assert tasks[1] == written(database.url, "schedd_tasks")[1]
    assert attempts[1] == written(database.url, "schedd_attempts")[1]


@pytest.mark.parametrize("graph", [False, True])
def test_the_narrow_loop_ends_all_of_its_own_rows(empty_database: Database, local: Any, graph: bool) -> None:
    narrow = local("contenders.raw_narrow")
    assert (narrow.dag if graph else narrow.drain)(empty_database.url.replace("+psycopg", ""), 250) > 0
    tasks, attempts = written(empty_database.url, "schedd_tasks"), written(empty_database.url, "schedd_attempts")
    assert tasks[0] == attempts[0] == 250
    assert all({"finished_at", "result_until"} <= columns for columns in tasks[1])


def test_every_work_has_a_contender(local: Any) -> None:
    works, bench = local("works"), local("bench")
    for database in (works.SQLITE, works.POSTGRESQL):
        able = {
            name
            for who in ("schedd", "raw")
            for names in bench.names_of(who, sys.executable).values()
            for name in names
        }
        doers = bench.names_of("schedd", sys.executable)
        for work in works.WORKS.values():
            assert doers[work.name, database], work.name
            for bar in work.bars[database]:
                assert bar.who in able
                assert bar.by in {*able, "", "every peer", *bench.CONTENDERS}
    assert works.MEANINGS.keys() == works.WORKS.keys()


def test_callers_store_what_they_count(database: Database, local: Any) -> None:
    """Two processes for a second, as the harness has them measured."""
    given = database.url.replace("+psycopg", "")
    for work in ("callers", "callers' transactions", "callers' batches"):
        rate = local("bench").spawn("--one", f"{work}:schedd, 2 callers", given, 1)
        assert rate > 0
        stored, _ = written(database.url, "schedd_tasks")
        assert stored >= rate / 2


def test_bars_are_judged_by_medians_within_rounds(local: Any) -> None:
    report, works = local("report"), local("works")
    by_who = {
        "schedd": {1: {"rate": 90.0, "turn": 9}, 2: {"rate": 20.0, "turn": 9}, 3: {"rate": 60.0, "turn": 9}},
        "raw": {1: 100.0, 2: 40.0, 3: 100.0},
        "huey": {2: 30.0, 3: 10.0},
        "rq": {3: 20.0},
    }
    assert report.reached(works.Bar(50), by_who) == (60.0, "")
    assert report.reached(works.Bar(0.6, "raw"), by_who) == (pytest.approx(0.6), "raw")
    # of each peer the rounds that both were in; the worst of them counts, and raw is none
    assert report.reached(works.Bar(1, "every peer"), by_who) == (3.0, "rq")
    assert report.judge(works.Bar(61), by_who) == ("≥ 61: not met (60.00)", False)
    assert report.judge(works.Bar(61, most=True), by_who) == ("≤ 61: met (60.00)", True)
    assert report.judge(works.Bar(1, "pgqueuer"), by_who)[1] is None
    latencies = {"schedd": {1: [1.0] * 99 + [9.0], 2: {"ms": [3.0] * 100, "failed": 0}}}
    assert report.reached(works.Bar(2, measure="p50", most=True), latencies) == (2.0, "")
    assert report.reached(works.Bar(2, measure="p99", most=True), latencies) == (6.0, "")
    latencies |= {"huey": {1: [2.0] * 99 + [6.0], 2: [6.0] * 100}, "pgqueuer": {1: [4.0] * 100, 2: [4.0] * 100}}
    # what is to be small is held against the smallest of the peers
    assert report.reached(works.Bar(1, "every peer", measure="p50", most=True), latencies) == (0.5, "pgqueuer")
    assert report.reached(works.Bar(1, "every peer", measure="p99", most=True), latencies) == (1.5, "pgqueuer")


def test_the_table_names_what_was_not_measured(local: Any) -> None:
    report = local("report")
    table = report.table({("drain", "sqlite"): {"schedd": {1: {"rate": 50_000.0, "turn": 9}}, "huey": {1: 5_000.0}}})
    unmeasured = "≥ 0.6 × raw: not measured; ≥ 0.98 × schedd, no rollups: not measured"
    assert f"| drain | sqlite | schedd | 50,000 /s | 1 |  | ≥ 40,000: met (50,000); {unmeasured} |" in table
    assert "| drain | sqlite | huey | 5,000 /s | 1 | 10.00 |  |" in table
    assert "1 of 1 bars met; 6 not measured." in table


def test_works_with_a_comma_can_be_chosen(local: Any) -> None:
    bench = local("bench")
    assert bench.chosen(bench.WORKS)("drain,dag 5,000,batch") == ["drain", "dag 5,000", "batch"]


def test_results_are_put_between_their_comments(local: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results: begin -->\nold\n<!-- results: end -->\nafter\n")
    local("pages").put("results", r"new \1", [page])
    assert page.read_text() == "before\n<!-- results: begin -->\nnew \\1\n<!-- results: end -->\nafter\n"
    with pytest.raises(ValueError, match="no place for profile"):
        local("pages").put("profile", "new", [page])
    written = "".join(page.read_text() for page in local("pages").PAGES)
    assert all(
        written.count(f"<!-- {name}: {end} -->") == 1
        for name in ("results", "profile", "curves", "start-causes")
        for end in ("begin", "end")
    )


def test_slopes_are_those_of_powers(local: Any) -> None:
    slope = local("curves").slope
    assert slope({x: [x**0.5 * 7] for x in (0, 1, 10, 100)}) == pytest.approx(0.5)
    assert slope({x: [3.0] for x in (1, 10, 100)}) == pytest.approx(0.0)


def test_what_the_profile_counts_is_there(local: Any) -> None:
    """Else a part that was moved is counted for its caller."""
    profile = local("cpu_profile")
    for path, _ in (*profile.CALLER, *profile.ENGINE, (profile.COMMIT, "")):
        module, _, name = path.partition(":")
        owner: Any = importlib.import_module(module)
        for part in name.split("."):
            assert hasattr(owner, part), path
            owner = getattr(owner, part)


def test_the_parts_of_a_start_add_up(database: Database, local: Any) -> None:
    causes = local("start_causes")
    # In a process of its own, for it replaces functions of the engine's.
    command = [sys.executable, causes.__file__, "--one", database.url.replace("+psycopg", ""), "--starts", "3"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert len(found) == 3
    for start in found:
        assert sum(start[part] for part in causes.STAGES) == pytest.approx(start["all"])
        assert min(start[part] for part in causes.STAGES) >= 0
    assert "| claim |" in causes.table({"here": found})


def test_stages_add_up(local: Any) -> None:
    stages = local("stages").Stages()

    def spend(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    inner = stages.counted(lambda: spend(0.02), "inner")

    def work() -> None:
        inner()
        spend(0.01)

    stages.counted(work, "outer")()
    found, whole = stages.read()
    assert found["inner"] >= 19_000
    assert 9_000 <= found["outer"] < found["inner"] + 9_000  # its own time only
    assert sum(found.values()) <= whole * 1.02


def test_what_a_day_of_tasks_needs_follows_from_the_costs(local: Any) -> None:
    scale = local("scale")
    alone, batch, run = scale.Cost(400, 500, 1000, 1.0), scale.Cost(10, 10, 500, 0.01), scale.Cost(50, 60, 1500, 0.01)
    costs = scale.Costs(alone, batch, run, kept=1000.0)
    a_day = 86_400 * 2_000  # 10,000 tasks/s at the peak
    one = scale.needs(costs, a_day, batches=False)
    assert one.rate == pytest.approx(10_000)
    assert (one.server_cores, one.wal, one.disk) == pytest.approx((4.5, 25.0, 172.8))
    assert (one.daemons, one.connections, one.cells) == (1, 3, 1)
    many = scale.needs(costs, 100 * a_day, batches=True)
    assert (many.daemons, many.connections, many.cells) == (100, 300, 7)
    assert scale.medians([costs, costs._replace(kept=3000.0), costs._replace(kept=2000.0)]).kept == 2000.0
    assert "| 100,000,000 | alone | 5,787 | 2.6 |" in scale.table(costs)


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_the_large_store_is_loaded_with_rows_as_a_program_leaves_them(database: Database, local: Any) -> None:
    large = local("large")
    ended, _ = large.load(database.url.replace("+psycopg", ""), 0.002, 0)
    assert ended == 2_000
    loaded = {state: _columns(database.url, state) for state in (1, 6, 8)}

    @task
    def broken(ctx: Context, n: int, text: str = "") -> None:
        raise ValueError("no such customer")

    jobs = Scheduler.for_testing(url=database.url, clock=FakeClock())
    jobs.register(noop)
    jobs.register(broken)
    with jobs.database.write() as tx:
        for table in ("schedd_tasks", "schedd_attempts"):
            tx.connection.execute(sa.text(f"DELETE FROM {table}"))
    for kind in (noop, broken):
        jobs.task(kind, 1, "hello world").schedule()
        jobs.task(kind, 1, "hello world").key("order-1").schedule()
        jobs.task(kind, 1, "hello world").correlation("cart-1").schedule()
    stored = _columns(database.url, 1)
    drain(jobs)
    assert loaded == {1: stored, 6: _columns(database.url, 6), 8: _columns(database.url, 8)}


def _columns(url: str, state: int) -> set[frozenset[str]]:
    """Which columns are set in tasks of the state, and in their attempts."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            sql = "SELECT * FROM schedd_tasks t LEFT JOIN schedd_attempts a ON a.task_id = t.id WHERE t.state = :state"
            rows = connection.execute(sa.text(sql), {"state": state}).fetchall()
    finally:
        engine.dispose()
    return {frozenset(name for name, value in zip(row._fields, row, strict=True) if value is not None) for row in rows}


@pytest.mark.parametrize("work", ["in", "bare in", "out", "bare out"])
def test_messages_are_counted_each_way(local: Any, database: Database, work: str, tmp_path: Path) -> None:
    messages = local("messages")
    with messages.configured("nats", database.url, tmp_path) as config:
        figures = messages.one(work, "nats", str(config), 30)
    assert figures["rate"] > 0
    assert figures["cpu"] > 0


def test_the_table_of_messages_has_ratios_within_rounds(local: Any) -> None:
    rates = {"in": (10.0, 30.0), "bare in": (20.0, 40.0), "out": (5.0, 5.0), "bare out": (5.0, 10.0)}
    results = [
        {"transport": "nats", "work": work, "database": "sqlite", "round": number, "rate": rate, "cpu": 7.0}
        for work, both in rates.items()
        for number, rate in enumerate(both)
    ]
    assert local("messages").table(results).splitlines()[2:] == [
        "| nats | in | sqlite | 20 (10–30) | 7 (7–7) | 0.62 (0.50–0.75) |",
        "| nats | out | sqlite | 5 (5–5) | 7 (7–7) | 0.75 (0.50–1.00) |",
    ]
