"""Through a connection pooler: statements are not prepared, and a worker that is not woken polls and says so once.

In `make programs` by a proxy that does what such a pooler does; in `make faults` by pgbouncer itself.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.harness import Fleet, all_ended, connect, rows, until
from faults.kinds import Work
from scheduler import Scheduler
from scheduler.ports import SystemClock
from scheduler.store.db.database import Database as Store
from support.databases import Database, PostgresDatabases
from support.pgbouncer import PgBouncer
from support.proxy import Proxy
from support.session import shared_directory

pytestmark = pytest.mark.faults
on_postgres = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
POOLED = "the way to the server leads through a connection pooler in transaction mode"


def name_of(database: Database) -> str:
    return database.url.partition("?")[0].rpartition("/")[2]


def latency(fleet: Fleet, jobs: Scheduler) -> float:
    before = time.monotonic_ns()
    task_id = jobs.task(Work()).schedule()
    (run,) = until(lambda: fleet.runs(task_id), "it starts", every=0.002)
    return (run.start - before) / 1e9


@on_postgres
def test_a_worker_that_is_not_woken_polls_and_says_so_once(
    database: Database, postgres_databases: PostgresDatabases, fleet: Fleet, jobs: Scheduler
) -> None:
    with Proxy(postgres_databases.socket, pooling=True) as proxy:
        worker = fleet.worker(url=proxy.url(name_of(database)))
        until(lambda: worker.lines(POOLED), "it says so")
        for _ in range(5):
            assert latency(fleet, jobs) < 1.0
        assert len(worker.lines("WARNING")) == 1, worker.text()
        worker.kill()


@on_postgres
def test_through_a_pooler_nothing_is_prepared(database: Database, postgres_databases: PostgresDatabases) -> None:
    """The next statement may meet another server process, which knows nothing of what this one was told."""

    def threshold(url: str) -> tuple[bool, int | None]:
        store = Store(url, SystemClock())
        with store.read() as tx:
            raw = tx.connection.connection.driver_connection
            found = (store.pooled, raw.prepare_threshold)
        store.dispose()
        return found

    with Proxy(postgres_databases.socket, pooling=True) as proxy:
        assert threshold(proxy.url(name_of(database))) == (True, None)
    with Proxy(postgres_databases.socket) as proxy:
        assert threshold(proxy.url(name_of(database))) == (False, 5)


@pytest.fixture(params=["transaction", "session"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bouncer(postgres_databases: PostgresDatabases, mode: str) -> Iterator[PgBouncer]:
    directory = Path(tempfile.mkdtemp(prefix="b", dir=shared_directory()))
    with PgBouncer(directory, postgres_databases.socket, mode) as made:
        yield made


@on_postgres
@pytest.mark.soak
def test_two_daemons_and_a_caller_through_pgbouncer(
    database: Database, bouncer: PgBouncer, fleet: Fleet, mode: str, tell: Callable[[str], None]
) -> None:
    url = bouncer.url(name_of(database))
    daemons = [fleet.daemon(url=url) for _ in range(2)]
    if mode == "transaction":
        for daemon in daemons:
            until(lambda: daemon.lines(POOLED), "it says so")  # noqa: B023
    with connect(url) as jobs:
        jobs.stop()  # it only schedules
        found = [latency(fleet, jobs) for _ in range(20)]
        tell(f"{mode}: a handler begins {sorted(found)[10] * 1000:.0f} ms after it was scheduled, median of 20")
        began = time.monotonic()
        for _ in range(20):
            with jobs.batch() as batch:
                for index in range(250):
                    task = batch.task(Work(1.0)).priority(("high", "medium", "low")[index % 3])
                    if index % 10 == 0:
                        first = task
                    else:
                        task.depend_on([first])
        all_ended(jobs, timeout=120)
        tell(f"{mode}: 5,000 tasks in {time.monotonic() - began:.1f} s")
        (ends,) = rows(jobs, "SELECT count(*) AS n, count(DISTINCT task_id) AS ids FROM schedd_attempts")
        assert (ends.n, ends.ids) == (5020, 5020)
    for daemon in daemons:
        assert len(daemon.lines(POOLED)) == (1 if mode == "transaction" else 0)
        assert "Traceback" not in daemon.text()
        assert not daemon.lines('"level":"error"'), daemon.text()
        daemon.kill()


@pytest.mark.soak
def test_without_pgbouncer_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    with pytest.raises(AssertionError, match="apt-get install pgbouncer"):
        PgBouncer(tmp_path, tmp_path / "socket", "transaction")
