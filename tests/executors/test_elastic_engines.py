"""Elastic workers as jobs of real engines, from the first due task to none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.databases import Database
from support.elastic import Elastic
from support.executor_rigs import RIGS
from support.ray_rig import CPUS as RAY_CPUS
from support.slurm_rig import CPUS as SLURM_CPUS

ENGINES = [
    "futures",
    "kubernetes",
    pytest.param("kubernetes-real", marks=pytest.mark.kube),
    pytest.param("slurm", marks=pytest.mark.executors),
    pytest.param("ray", marks=[pytest.mark.executors, pytest.mark.full]),  # Slurm's jobs wait for each other, too
]
MORE = {
    "slurm": 'worker_resources = { cpu = 1, memory = "300M" }\nworker_options = { partition = "main" }\n',
    "ray": "worker_resources = { cpu = 1 }\n",
}
BLOCKS = {"slurm": SLURM_CPUS, "ray": RAY_CPUS}  # the engines whose jobs wait for each other, and how much fills them


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def elastic(engine: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elastic]:
    monkeypatch.delenv("SCHEDD_STORE__URL", raising=False)
    made = Elastic(RIGS[engine](), database.url, tmp_path, MORE.get(engine, ""))
    yield made
    made.close()


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_a_backlog_starts_workers_and_none_is_left(engine: str, elastic: Elastic, tmp_path: Path) -> None:
    """An engine whose jobs wait for each other is full at first, and ``why`` says what the worker waits for."""
    if engine in BLOCKS:
        elastic.block(BLOCKS[engine])
    tasks = [elastic.schedule() for _ in range(4)]
    if engine in BLOCKS:
        elastic.until(lambda: "waits for a worker of executor it: pending, " in elastic.why(tasks[0]))
        elastic.unblock()
    elastic.until(lambda: elastic.ended(tasks))
    assert elastic.states(tasks) == ["success"] * 4
    elastic.until(lambda: not elastic.workers and not elastic.known)
    assert not list((tmp_path / "jobs").glob("*-w*"))


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_a_worker_that_is_killed_is_replaced(engine: str, elastic: Elastic, tmp_path: Path) -> None:
    """Its task runs again, in another worker's job."""
    task = elastic.schedule("wait")
    elastic.until(lambda: elastic.lines("begin"))
    (first,) = elastic.workers
    RIGS[engine]().kill(tmp_path, first)
    elastic.until(lambda: len(elastic.lines("begin")) == 2)
    assert first not in elastic.workers
    elastic.notes.with_suffix(".go").touch()
    elastic.until(lambda: elastic.ended([task]))
    assert elastic.states([task]) == ["success"]
    assert elastic.jobs.get_task(task).attempt == 2
    elastic.until(lambda: not elastic.workers)
