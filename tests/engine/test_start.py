"""Starting an engine: without a place for a socket, with some options only, without its database."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Scheduler, Task
from scheduler.errors import StoreUnavailableError
from scheduler.model.defaults import RETENTION
from support.bench import Bench, notify_and_step
from support.databases import Database


class Fine(Task, kind="fine"):
    async def run(self, ctx: Any) -> str:
        return "fine"


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_without_permission_for_a_socket_an_engine_polls(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("scheduler.system.locks.fcntl.flock", refuse)
    with Scheduler(database.url) as jobs:
        jobs.register(Fine)
        assert jobs.result(jobs.task(Fine()).schedule(), 10) == "fine"


def test_some_of_the_retention_times_may_be_given(database: Database) -> None:
    with Scheduler.for_testing(url=database.url, retention={"success": 3600}) as jobs:
        assert jobs._make_engine().options.retention == {**RETENTION, "success": 3600.0}


def test_kinds_registered_while_the_database_is_away_are_published_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    notify_and_step(bench.jobs)

    def away(*_: Any) -> Any:
        raise StoreUnavailableError("away")

    bench.jobs.register(Fine)
    with monkeypatch.context() as m:
        m.setattr("scheduler.store.workers.publish_kinds", away)
        with pytest.raises(StoreUnavailableError):
            notify_and_step(bench.jobs)
    notify_and_step(bench.jobs)
    with bench.jobs.database.read() as tx:
        found = tx.connection.execute(sa.text("SELECT 1 FROM schedd_worker_kinds WHERE kind = 'fine'")).scalar()
    assert found == 1


def away(*_: Any, **__: Any) -> Any:
    raise StoreUnavailableError("away")
