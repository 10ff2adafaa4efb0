"""The engines that tests of executors share end with them. What an engine that is slow to start is tried with."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.executors import job_fork_server
from scheduler.executors.kubernetes import KubernetesExecutor
from support.dask_rig import DaskCluster
from support.executor_rigs import RIGS
from support.kube_api import KubeApi
from support.kube_jobs import make
from support.kube_real import RealKube
from support.slurm_rig import SlurmCluster
from support.warm import warm

ROOM = Path(__file__).parent  # pytest asks about all items, not only those of this directory
# What depends on the database as well as on the engine. The rest is tried with slow engines on SQLite only.
ON_BOTH = {
    "test_jobs_run_and_record",
    "test_a_submission_without_an_answer_is_looked_for",
    "test_a_job_that_is_killed_runs_again",
    "test_a_preempted_task_uses_no_attempt",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {item for item in items if _is_left_out(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Item) -> bool:
    if ROOM not in item.path.parents or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    rig, dialect, pool = (item.callspec.params.get(name) for name in ("rig", "dialect", "pool"))
    if pool is not None:
        return dialect == "postgresql"  # what pools differ in is not the database
    return rig in RIGS and RIGS[rig].slow and dialect == "postgresql" and item.originalname not in ON_BOTH


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubeApi]:
    """A Kubernetes cluster of the test's own."""
    place = tmp_path / "cluster"
    place.mkdir()
    made = KubeApi(place)
    yield made
    made.close()


@pytest.fixture
def executor(api: KubeApi) -> Iterator[KubernetesExecutor]:
    """An executor on it."""
    made = make(api)
    yield made
    made.close()


@pytest.fixture
def forked_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that forks jobs is forked itself, from a process that has imported what it needs."""

    def fork(argv: Sequence[str], *, env: dict[str, str], pass_fds: Sequence[int], **_: Any) -> Any:
        with open(os.devnull, "r+b") as null:
            fds = [null.fileno(), null.fileno(), 2]
            return warm.start(argv[3], argv[4:], Path.cwd(), env, fds, keep=pass_fds, session=True)

    process = job_fork_server.subprocess
    stand_in = SimpleNamespace(Popen=fork, DEVNULL=process.DEVNULL, TimeoutExpired=process.TimeoutExpired)
    monkeypatch.setattr(job_fork_server, "subprocess", stand_in)


@pytest.fixture(scope="session", autouse=True)
def shared_engines() -> Iterator[None]:
    yield
    SlurmCluster.close_shared()
    DaskCluster.close_shared()
    KubeApi.close_shared()
    RealKube.close_apart()
