"""Jobs of the executor ``kubernetes``, whose commands run as processes (``kube_cluster.py``); with tasks, too."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import TaskState
from scheduler.executors.kubernetes import KubernetesExecutor
from scheduler.executors.ports import Job, PlacementPhase
from support.databases import Database
from support.fleet import until
from support.job_ends import PATIENCE, over, seen
from support.kube_api import KubeApi, Mishap
from support.kube_jobs import JOBS, goes_on_elsewhere, job, make, pods, role, running
from support.kube_pods import IMAGE
from support.placing import Place


def test_cancelled_jobs_and_their_pods_are_gone(executor: KubernetesExecutor, api: KubeApi) -> None:
    one, two = job(1), job(2)
    executor.submit([one, two])
    until(lambda: running(executor, one.name), PATIENCE)
    executor.cancel([one.name, "schedd-0-99-1", "not/ours"], 1.0)
    until(lambda: [found.name for found in executor.observe()] == [two.name], PATIENCE)
    assert len(pods(api)) == 1
    executor.cancel([one.name], 1.0)
    api.cluster.kill("jobs", two.name)
    ended = over(executor, two.name)
    assert (ended.phase, ended.signal, ended.node) == (PlacementPhase.FAILED, signal.SIGKILL, "node-1")
    executor.forget([two.name])
    assert (executor.observe(), pods(api)) == ([], [])
    executor.forget([two.name])


def test_a_pod_has_its_grace(api: KubeApi) -> None:
    executor = make(api, grace=0.5)
    deaf = job(1, "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    executor.submit([deaf])
    until(lambda: executor.logs(deaf.name, 100) == "deaf\n", PATIENCE)
    assert pods(api)[0]["spec"]["terminationGracePeriodSeconds"] == 6
    executor.cancel([deaf.name], 0.5)
    assert running(executor, deaf.name)  # the Job stays until its pod is gone
    api.cluster.kill("jobs", deaf.name)
    until(lambda: executor.observe() == [], PATIENCE)


def test_a_job_that_runs_for_too_long_has_timed_out(executor: KubernetesExecutor) -> None:
    one = job(1, limit=0.5)
    executor.submit([one])
    ended = over(executor, one.name)
    assert ended.phase is PlacementPhase.TIMED_OUT
    assert "DeadlineExceeded" in str(ended.reason)


def test_what_waits_on_a_full_cluster_does_not_run_out_of_time(executor: KubernetesExecutor, api: KubeApi) -> None:
    api.cluster.starts = False
    one = job(1, "true", limit=0.1)
    executor.submit([one])
    (name,) = (pod["metadata"]["name"] for pod in pods(api))
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    api.cluster.patch_pod("jobs", name, conditions=[why])
    found = seen(executor, one.name)
    assert found is not None
    assert (found.phase, found.reason) == (PlacementPhase.QUEUED, f"pod {name}, Unschedulable: 0/1 nodes")
    assert "activeDeadlineSeconds" not in api.cluster.get("jobs", "jobs", one.name)["spec"]
    api.cluster.start_pod("jobs", name)
    assert over(executor, one.name).phase is PlacementPhase.SUCCEEDED


def test_the_end_of_a_log_is_read(executor: KubernetesExecutor) -> None:
    one = job(1, """echo first; echo '{"last": 1}'""")
    executor.submit([one])
    assert over(executor, one.name).exit_code == 0
    assert executor.logs(one.name, 1000) == 'first\n{"last": 1}\n'
    assert executor.logs(one.name, 12) == '{"last": 1}\n'
    json_only = job(2, """echo '{"last": 1}'""")
    executor.submit([json_only])
    over(executor, json_only.name)
    assert executor.logs(json_only.name, 1000) == '{"last": 1}\n'
    assert executor.logs("schedd-0-99-1", 1000) is None


def test_an_image_that_cannot_be_had_is_waited_for(api: KubeApi) -> None:
    executor = make(api, image="registry.example/nothing:1")
    one = job(1, "true")
    executor.submit([one])
    found = seen(executor, one.name)
    assert found is not None
    assert found.phase is PlacementPhase.STARTING
    assert 'ImagePullBackOff: Back-off pulling image "registry.example/nothing:1"' in str(found.reason)
    assert executor.logs(one.name, 1000) is None
    executor.cancel([one.name], 1.0)
    assert executor.observe() == []


def test_a_command_that_is_not_in_the_image_says_so(executor: KubernetesExecutor) -> None:
    one = Job(name="schedd-0-1-1", argv=["/nowhere/python"], labels={"store": "0", "task": "1", "claim": "1"})
    executor.submit([one])
    assert "StartError: /nowhere/python: No such file" in str(over(executor, one.name).reason)


# With tasks


@pytest.fixture
def place(database: Database, tmp_path: Path, api: KubeApi) -> Iterator[Place]:
    settings = (
        f'type = "kubernetes"\nserver = "{api.url}"\ntoken_file = "{api.token_file}"\nca_file = "{api.ca_file}"\n'
        f'namespace = "jobs"\nimage = "{IMAGE}"\n'
    )
    api.rules = role()  # with no more rights than the example gives
    made = Place(database.url, tmp_path, settings)
    yield made
    made.close()


@pytest.mark.parametrize("complete", [False, True])
def test_a_second_pod_of_a_job_changes_nothing(place: Place, api: KubeApi, complete: bool) -> None:
    """The first one is deleted, as from a node that is drained. What the Job says of both says nothing of the task."""
    api.cluster.says_complete = complete
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin") and place.state(task_id) is TaskState.RUNNING)
    (first,) = pods(api)
    api.cluster.delete_pod("jobs", first["metadata"]["name"])
    assert len(pods(api)) == 2
    goes_on_elsewhere(place, task_id)
    assert len(place.lines("begin")) == 2  # the second pod began nothing


def test_a_second_pod_does_not_end_the_first_ones_lease(place: Place, api: KubeApi) -> None:
    """The first one was removed by force from a node that is cut off, where it goes on."""
    api.cluster.says_complete = True
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin") and place.state(task_id) is TaskState.RUNNING)
    (first,) = pods(api)
    api.cluster.cut_off("jobs", first["metadata"]["name"])
    name = place.placements(task_id)[0].name
    place.until(lambda: over(place.engine.inner, name).exit_code == 75)
    for _ in range(5):
        place.placer.step()
    assert place.state(task_id) is TaskState.RUNNING
    place.go()
    place.until(lambda: place.ended(task_id))
    assert (place.outcomes(task_id), len(place.lines("begin"))) == (["succeeded"], 1)


@pytest.mark.parametrize("policy", ["Foreground", "Background"])
def test_a_job_that_is_deleted_by_hand_hands_its_task_back(place: Place, api: KubeApi, policy: str) -> None:
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin") and place.state(task_id) is TaskState.RUNNING)
    api.cluster.delete_job("jobs", place.placements(task_id)[0].name, policy)
    goes_on_elsewhere(place, task_id)


def test_what_a_quota_has_no_room_for_waits(place: Place, api: KubeApi) -> None:
    full = Mishap("POST", JOBS, 403, "Forbidden", "exceeded quota: most", {"Retry-After": "0"}, times=2)
    api.mishaps.append(full)
    task_id = place.schedule()
    place.placer.step()
    (placement,) = place.placements(task_id)
    assert placement.reason == "exceeded quota: most"
    place.until(lambda: place.ended(task_id))
    assert (place.outcomes(task_id), full.times) == (["succeeded"], 0)


def test_what_is_never_taken_fails_with_why(place: Place, api: KubeApi) -> None:
    api.mishaps.append(Mishap("POST", JOBS, 403, "Forbidden", 'admission webhook "policy" denied the request'))
    task_id = place.schedule()
    place.until(lambda: place.ended(task_id))
    error = str(place.jobs.get_last_error(task_id))
    assert error.endswith('never takes it: admission webhook "policy" denied the request')
    assert place.lines() == []
