"""Jobs without a database on engines that start them in ways of their own. ``process`` has the whole suite so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import pytest

from scheduler import TaskState
from scheduler.model.placement import TOKEN_VARIABLE
from scheduler.store.read import history
from support.databases import Database
from support.executor_rigs import RIGS, SECRET, through_gateway
from support.placing import Place
from support.ray_rig import RayCluster

ENGINES = [
    *(pytest.param(name, marks=pytest.mark.executors) for name in ("slurm", "futures", "ray", "kubernetes")),
    pytest.param("kubernetes-real", marks=pytest.mark.kube),
]


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Place]:
    made = Place(database.url, tmp_path, through_gateway(tmp_path, RIGS[request.param]().settings(tmp_path)))
    with _reached(request.param, made):
        yield made
        made.close()


def _reached(engine: str, place: Place) -> AbstractContextManager[object]:
    """Jobs of Ray are in a network namespace of their own, so the gateway has to be let into it."""
    port = int(str(place.config.gateway.listen).rpartition(":")[2])
    return closing(RayCluster.shared().let_out(port)) if engine == "ray" else nullcontext()


def test_jobs_run_and_record_without_a_database(place: Place, database: Database) -> None:
    place.commands.more = {"PLACED_WATCH": "1"}
    looks, fails = place.schedule("look"), place.schedule("fail")
    place.until(lambda: place.ended(looks, fails))
    assert place.jobs.result(looks) == {"first": 1, "attempt": 1}, place.told()
    assert (place.state(fails), place.jobs.get_last_error(fails)) == (
        TaskState.DEAD,
        "PermanentError: it cannot be done",
    )
    with place.jobs.database.read() as tx:
        assert "the body has ended" in str(history.attempt_log(tx, looks))
    found = json.loads(place.lines("look")[0].removeprefix("look "))
    given = " ".join([*found["environ"], *found["argv"]])  # what its children get
    for job in place.engine.submitted:
        assert job.env[TOKEN_VARIABLE] not in given
    given += " ".join(found["own"])
    assert database.url not in given
    assert SECRET not in given
    assert found["opened"] == [f"socket {place.config.gateway.listen}"]


@pytest.mark.full
def test_a_job_that_is_killed_runs_again(place: Place) -> None:
    task_id = place.schedule("die")
    place.until(lambda: place.ended(task_id))
    assert place.outcomes(task_id) == ["lost", "succeeded"]
    assert place.jobs.result(task_id) == {"first": 1, "attempt": 2}  # the step is kept
    assert place.side_by_side() == 0


@pytest.mark.full
def test_what_runs_is_cancelled(place: Place) -> None:
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin"))
    place.jobs.cancel_task(task_id)
    place.until(lambda: place.ended(task_id) and not place.handles())
    assert (place.state(task_id), place.outcomes(task_id)) == (TaskState.CANCELLED, ["cancelled"])
    assert place.engine.cancelled == []
