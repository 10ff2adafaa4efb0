"""Jobs and executors for tests with a cluster, and the manifests that operators start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import yaml

from scheduler.executors.kubernetes import KubernetesExecutor
from scheduler.executors.ports import Executor, Job, PlacementPhase
from support.job_ends import seen
from support.kube_api import KubeApi
from support.kube_pods import IMAGE
from support.placing import Place

EXAMPLE = Path(__file__).parents[2] / "examples" / "kubernetes" / "schedd.yaml"
JOBS = "/apis/batch/v1/namespaces/jobs/jobs"


class Reached(Protocol):
    """What has an API server: KubeApi, and a namespace of a real cluster."""

    url: str
    token_file: Path
    ca_file: Path


def make(api: Reached, **settings: Any) -> KubernetesExecutor:
    given = {
        "server": api.url,
        "token_file": str(api.token_file),
        "ca_file": str(api.ca_file),
        "namespace": "jobs",
        "image": IMAGE,
        **settings,
    }
    return KubernetesExecutor("it", KubernetesExecutor.Settings(**given))


def job(number: int, script: str = "exec sleep 60", store: str = "0a", **more: Any) -> Job:
    labels = {"store": store, "task": str(number), "claim": "1", "kind": "Work", "queue": "default"}
    return Job(name=f"schedd-0-{number}-1", argv=["/bin/sh", "-c", script], labels=labels, **more)


def running(executor: Executor, name: str) -> bool:
    found = seen(executor, name)
    return found is not None and found.phase is PlacementPhase.RUNNING


def pods(api: KubeApi) -> list[dict[str, Any]]:
    return api.cluster.list("pods", "jobs", "")


def documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8"))}


def role() -> Any:
    return documents()["Role"]["rules"]


def goes_on_elsewhere(place: Place, task_id: int) -> None:
    """Wait until a task is handed back and another job has run it, with the step that it had and no attempt more."""
    place.until(lambda: place.outcomes(task_id))
    place.go()
    place.until(lambda: place.ended(task_id))
    assert place.outcomes(task_id) == ["handed back", "succeeded"]
    assert place.jobs.result(task_id) == {"first": 1, "attempt": 1}
    assert place.jobs.get_task(task_id).attempts_used == 1
    assert place.side_by_side() == 0
