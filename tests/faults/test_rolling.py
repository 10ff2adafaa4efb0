"""Two versions of a program on one database: the fleet is upgraded one worker after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.harness import Fleet, all_ended, all_take_part, connect, history, result, rows, state, until
from faults.kinds import Work
from faults.versions import Fresh, Letter, NewLetter
from scheduler import Scheduler
from support.databases import Database
from support.next_program import NEXT, write_scripts

pytestmark = pytest.mark.faults
LEASE = {"lease": 1.0}


@pytest.fixture
def upgraded(empty_database: Database, tmp_path: Path) -> tuple[Database, str]:
    """A database of the next schema, and where its migrations are."""
    from scheduler.store.db import migrate

    scripts = write_scripts(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "HEAD", NEXT)
        patch.setattr(migrate, "scripts", lambda: scripts)
        migrate.upgrade(empty_database.url)
    return empty_database, scripts


def test_old_and_new_workers_share_the_work_and_new_kinds_are_left_to_the_new(
    upgraded: tuple[Database, str], mother: object, tmp_path: Path
) -> None:
    database, scripts = upgraded
    (tmp_path / "fleet").mkdir()
    fleet = Fleet(database.url, tmp_path / "fleet", mother)  # type: ignore[arg-type]
    try:
        _share(database, scripts, fleet)
    finally:
        fleet.close()


def _share(database: Database, scripts: str, fleet: Fleet) -> None:
    with connect(database.url) as caller, Scheduler(database.url) as newer:
        for one in (caller, newer):
            one.stop()  # they only schedule
        newer.register(NewLetter)
        newer.register(Fresh)
        caller.register(Letter)
        old = fleet.worker(options=LEASE, extra=["Letter"])
        fresh = [int(newer.task(Fresh()).schedule()) for _ in range(3)]
        letters = [int(newer.task(NewLetter(["a", "b"])).schedule()) for _ in range(3)]
        both = [int(caller.task(Work(5.0)).schedule()) for _ in range(20)]
        until(lambda: all(state(caller, i) == "success" for i in both), "the old one works on the next schema")
        assert {state(caller, i) for i in (*fresh, *letters)} == {"scheduled"}, "they are left to the new ones"
        older = [int(caller.task(Letter("a")).schedule()) for _ in range(3)]

        new = fleet.worker(options=LEASE, extra=["NewLetter", "Fresh"], next=scripts)
        all_ended(caller, timeout=40)
        all_take_part(fleet, caller, [old, new])
        for i in (*fresh, *letters):
            assert {run.pid for run in fleet.runs(i)} == {new.pid}
            assert history(caller, i) == [(1, "succeeded")]
        for i in older:
            (run,) = fleet.runs(i)
            assert result(caller, i) == (["upgraded", "a"] if run.pid == new.pid else "a")
        versions = {r.version for r in rows(caller, "SELECT version FROM schedd_workers")}
        assert len(versions) == 2
        for process in (old, new):
            assert "Traceback" not in process.text()
