"""Handlers that change the directory and the umask of their process: the daemon goes on, and no other notices it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from faults import careless
from faults.harness import Fleet, all_ended, result, state, until
from scheduler import Scheduler
from support.databases import Database, one_database

pytestmark = pytest.mark.faults
OPTIONS = {"worker__processes": "1", "pools__medium__slots": "2", "pools__medium__async_slots": "2"}


def moves(to: Path) -> list[object]:
    place = str(to)
    return [
        careless.Move(place),
        careless.AMove(place),
        careless.AMove(place, "thread"),
        careless.AMove(place, "step"),
        careless.MoveInside(place),
        careless.MoveByFunction(place),
    ]


@pytest.mark.case(101)
def test_each_attempt_begins_where_the_daemon_was_started(fleet: Fleet, jobs: Scheduler, tmp_path: Path) -> None:
    fleet.daemon(module="faults.careless", **OPTIONS)
    for kind in (careless.Move, careless.AMove, careless.MoveInside, careless.MoveByFunction, careless.Where):
        jobs.register(kind)
    ids = [jobs.task(task).schedule() for _ in range(4) for task in moves(tmp_path)]  # type: ignore[call-overload]
    all_ended(jobs)
    mode = 0o666 & ~_umask()
    assert {tuple(result(jobs, i)[:2]) for i in ids} == {(str(fleet.directory), mode)}


@pytest.mark.case(101)
def test_a_handler_that_has_moved_does_not_move_another_that_runs(
    fleet: Fleet, jobs: Scheduler, tmp_path: Path
) -> None:
    fleet.daemon(module="faults.careless", **OPTIONS)
    jobs.register(careless.Move)
    jobs.register(careless.Where)
    moving = jobs.task(careless.Move(str(tmp_path), stay=3.0)).schedule()
    until(lambda: state(jobs, moving) == "running", "it runs")
    beside = jobs.task(careless.Where()).schedule()
    until(lambda: state(jobs, beside) == "success", "the other one has ended")
    assert state(jobs, moving) == "running"
    assert result(jobs, beside)[0] == str(fleet.directory)
    all_ended(jobs)
    assert result(jobs, moving)[2] == str(tmp_path)


@one_database
def test_a_daemon_with_relative_paths_serves_on_reloads_and_stops(
    fleet: Fleet, database: Database, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(database.path, fleet.directory / "relative.db")
    daemon = fleet.daemon(module="faults.careless", url="sqlite:///relative.db", **OPTIONS)
    jobs = Scheduler(f"sqlite:///{fleet.directory}/relative.db")
    for kind in (careless.Move, careless.AMove, careless.MoveInside, careless.MoveByFunction, careless.Where):
        jobs.register(kind)
    for task in moves(elsewhere):
        jobs.task(task).schedule()  # type: ignore[call-overload]
    all_ended(jobs)
    daemon.kill(1)
    until(lambda: daemon.lines("reloaded") or daemon.lines("not reloaded"), "it has reloaded")
    assert not daemon.lines("not reloaded")
    jobs.task(careless.Where()).schedule()
    all_ended(jobs)
    daemon.kill(15)
    assert daemon.wait() == 0
    assert list(elsewhere.iterdir()) == []
    jobs.close()


def _umask() -> int:
    present = os.umask(0o077)
    os.umask(present)
    return present
