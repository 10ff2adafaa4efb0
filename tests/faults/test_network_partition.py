"""A worker that is cut off from its database: its handlers learn it in time, others take over, and it comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from faults.harness import Fleet, Process, all_ended, history, overlapping, rows, state, until
from faults.kinds import Beating, Dozing, Hold, Step, Work
from scheduler import Scheduler
from support.databases import Database, PostgresDatabases
from support.proxy import Proxy

pytestmark = [
    pytest.mark.faults,
    pytest.mark.case(4, 9),
    pytest.mark.parametrize("dialect", ["postgresql"], indirect=True),
]
LEASE = 1.5
OPTIONS = {"lease": LEASE, "pools": {"high": (0, 0), "medium": (4, 4), "low": (0, 0)}}


@pytest.fixture
def proxy(database: Database, postgres_databases: PostgresDatabases) -> Iterator[Proxy]:
    with Proxy(postgres_databases.socket) as made:
        yield made


@pytest.fixture
def cut_off(fleet: Fleet, database: Database, proxy: Proxy) -> Process:
    """The worker whose way to the server leads through the proxy."""
    return fleet.worker(url=proxy.url(database.url.partition("?")[0].rpartition("/")[2]), options=OPTIONS)


def begun(jobs: Scheduler, fleet: Fleet, ids: list[int]) -> None:
    until(lambda: all(fleet.runs(i) for i in ids), "all handlers are under way")
    until(lambda: {state(jobs, i) for i in ids} == {"running"}, "their rows say so")


def test_handlers_end_when_the_lease_has_run_out_and_others_take_over(
    fleet: Fleet, jobs: Scheduler, proxy: Proxy, cut_off: Process
) -> None:
    kinds = [Step(60_000.0), Beating(), Dozing()]  # a thread that asks, one that sends heartbeats, a coroutine
    ids = [int(jobs.task(kind).schedule()) for kind in kinds]
    begun(jobs, fleet, ids)
    other = fleet.worker(options=OPTIONS)
    proxy.hole()
    away = time.monotonic_ns()
    until(lambda: all(fleet.runs(i)[0].end for i in ids), "all handlers have ended")
    for i in ids:
        assert (fleet.runs(i)[0].end or 0) - away < 1.5 * LEASE * 1e9, "it was not told in time"
    until(lambda: all(len(fleet.runs(i)) == 2 for i in ids), "they run elsewhere")
    until(lambda: cut_off.lines("the lease has run out"), "it says so")
    until(lambda: cut_off.lines("has not answered for"), "and why")
    until(lambda: not cut_off.lines("the database is back"), "it is still away")
    proxy.heal()
    until(lambda: cut_off.lines("the database is back"), "it comes back by itself")
    for i in ids:
        assert not list(overlapping(fleet.runs(i)))
        assert history(jobs, i) == [(1, "lost")]
        jobs.cancel_task(i)
    all_ended(jobs)
    other.kill()
    again = jobs.task(Work()).schedule()
    until(lambda: fleet.runs(again) and fleet.runs(again)[0].pid == cut_off.pid, "it works again")
    assert "Traceback" not in cut_off.text()


def test_what_no_worker_took_over_goes_on_or_goes_back(
    fleet: Fleet, jobs: Scheduler, proxy: Proxy, cut_off: Process
) -> None:
    """There is no other worker: the claims are whole when it comes back. Who was told ends without using an attempt;
    who never asked is none the wiser, and is recorded."""
    deaf, asking, coroutine = (int(jobs.task(kind).schedule()) for kind in (Hold(), Step(60_000.0), Dozing()))
    begun(jobs, fleet, [deaf, asking, coroutine])
    proxy.hole()
    until(lambda: all(fleet.runs(i)[0].end for i in (asking, coroutine)), "both have ended")
    cut_off.open()
    proxy.heal()
    until(lambda: state(jobs, deaf) == "success", "the deaf one is recorded")
    assert history(jobs, deaf) == [(1, "succeeded")]
    until(lambda: all(len(fleet.runs(i)) == 2 for i in (asking, coroutine)), "the others run again")
    for i in (asking, coroutine):
        assert history(jobs, i) == [(1, "handed back")]
        (row,) = rows(jobs, "SELECT attempt - attempt_base AS used FROM schedd_tasks WHERE id = :id", id=i)
        assert row.used == 1, "the present attempt only"
        jobs.cancel_task(i)
    all_ended(jobs)
    assert not cut_off.lines("lease was lost")


def test_a_dead_connection_is_replaced_before_the_lease_runs_out(
    fleet: Fleet, jobs: Scheduler, proxy: Proxy, cut_off: Process
) -> None:
    """As behind a firewall that forgot it: nothing comes back on the old connection, a new one works at once."""
    held = int(jobs.task(Step(60_000.0)).schedule())
    begun(jobs, fleet, [held])
    assert proxy.half_close()
    until(lambda: cut_off.lines("the database is back"), "it has another connection", timeout=3 * LEASE)
    after = jobs.task(Work()).schedule()
    until(lambda: state(jobs, after) == "success", "it works again")
    if not cut_off.lines("the lease has run out"):  # a busy machine may take longer
        assert [run.end for run in fleet.runs(held)] == [None]
    jobs.cancel_task(held)
    all_ended(jobs)
