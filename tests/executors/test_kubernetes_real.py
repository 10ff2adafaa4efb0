"""The executor ``kubernetes`` on a real API server with its controllers: what a stand-in of either might get wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import TaskState
from scheduler.executors import kubernetes_api, kubernetes_parse
from scheduler.executors.kubernetes import KubernetesExecutor
from scheduler.executors.ports import NOT_MINE, ExecutorError, PlacementPhase, Refused, Submitted
from scheduler.model.placement import PlacementState
from support.databases import Database
from support.fleet import until
from support.job_ends import PATIENCE, over, seen
from support.kube_jobs import documents, goes_on_elsewhere, job, make, role, running
from support.kube_real import MANAGER, SERVER, WITH_RIGHTS, Namespace, RealKube, kill_job
from support.placing import Place

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]
DEAF = "trap '' TERM; echo deaf; while :; do sleep 0.1; done"


@pytest.fixture
def real(tmp_path: Path) -> Namespace:
    """A namespace with the rights of the example."""
    return Namespace(RealKube.shared(), tmp_path)


@pytest.fixture
def executor(real: Namespace) -> Iterator[KubernetesExecutor]:
    made = make(real, namespace=real.name)
    yield made
    made.close()


@pytest.fixture
def place(database: Database, tmp_path: Path, real: Namespace) -> Iterator[Place]:
    made = Place(database.url, tmp_path, real.settings())
    yield made
    made.close()


def limit(real: Namespace, what: str, most: int) -> str:
    """Have a quota, and wait until it counts; its path."""
    wanted = {"spec": {"hard": {what: str(most)}}, "metadata": {"name": "most"}}
    real.create({"apiVersion": "v1", "kind": "ResourceQuota", **wanted})
    path, client = f"{real.path}/resourcequotas/most", real.cluster.client
    until(lambda: what in client.ask("GET", path).get("status", {}).get("used", {}), PATIENCE)
    return path


# Refusals


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        ({"tolerations": [{"operator": "Bogus"}]}, "spec.template.spec.tolerations[0].operator: Unsupported value"),
        ({"hostNetwork": "yes"}, "HostNetwork"),
        ({"serviceAccountName": "No Such Name"}, "is invalid: spec.template.spec.serviceAccountName"),
    ],
)
def test_what_no_cluster_takes_is_refused_for_good(real: Namespace, pod: dict[str, Any], why: str) -> None:
    (refused,) = make(real, namespace=real.name, pod=pod).submit([job(1)])
    assert isinstance(refused, Refused)
    assert (refused.later, why in refused.reason) == (False, True), refused


def test_a_full_quota_is_waited_for(real: Namespace, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_parse, "FULL_S", 1.0)
    path = limit(real, "count/jobs.batch", 1)
    place.shut()
    first = place.schedule()
    place.until(lambda: place.placements(first) and place.placements(first)[0].state is PlacementState.SUBMITTED)
    second = place.schedule()
    place.until(lambda: place.placements(second) and place.placements(second)[0].reason)
    (placement,) = place.placements(second)
    assert str(placement.reason).startswith("jobs.batch ")
    assert "exceeded quota: most, requested: count/jobs.batch=1, used: count/jobs.batch=1" in str(placement.reason)
    assert (placement.state, place.state(second).terminal) == (PlacementState.RESERVED, False)
    real.cluster.client.ask("PATCH", path, {"spec": {"hard": {"count/jobs.batch": "9"}}})
    assert place.gate is not None
    place.gate.open()
    place.until(lambda: place.ended(first, second))
    assert place.outcomes(second) == ["succeeded"]


def test_a_quota_of_pods_keeps_a_job_waiting(real: Namespace, executor: KubernetesExecutor) -> None:
    path = limit(real, "pods", 0)
    assert executor.submit([job(1, "true")]) == [Submitted("schedd-0-1-1", "schedd-0-1-1")]
    found = seen(executor, "schedd-0-1-1")
    assert found is not None
    assert (found.phase, found.reason) == (PlacementPhase.QUEUED, "the Job has no pod yet")
    real.cluster.client.ask("PATCH", path, {"spec": {"hard": {"pods": "9"}}})
    assert over(executor, "schedd-0-1-1").phase is PlacementPhase.SUCCEEDED


def test_who_may_not_is_no_refusal_of_a_task(tmp_path: Path) -> None:
    """And a check says what is missing, by the command, too."""
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "delete"]}]
    poor = Namespace(RealKube.shared(), tmp_path, rules)
    with pytest.raises(ExecutorError, match=r'answered 403: .* cannot create resource "jobs" in API group "batch"'):
        make(poor, namespace=poor.name).submit([job(1)])
    file = tmp_path / "schedd.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{tmp_path / "jobs.db"}"\n[executors.it]\n{poor.settings()}')
    done = subprocess.run(
        [sys.executable, "-c", "from scheduler.cli import main; main()", "-o", "json", "executors", "check", "it"],
        env={**os.environ, "SCHEDD_CONFIG": str(file)}, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert {one["found"] for one in found if not one["ok"]} == {
        f"schedd may not {what}: a Role has to allow it" for what in ("create jobs", "list pods", "get pods/log")
    }
    assert done.returncode == 1


def test_a_namespace_that_is_not_there_or_goes_is_no_refusal(real: Namespace) -> None:
    administrator = str(real.cluster.place / "token")
    with pytest.raises(ExecutorError, match='answered 404: namespaces "nowhere" not found'):
        make(real, namespace="nowhere", token_file=administrator).submit([job(1)])
    with pytest.raises(ExecutorError, match=r'answered 403: .* in the namespace "nowhere"'):
        make(real, namespace="nowhere").submit([job(1)])
    keeps = {"metadata": {"name": "keeps", "finalizers": ["schedd.dev/test"]}}
    real.create({"apiVersion": "v1", "kind": "ConfigMap", **keeps})
    client = real.cluster.client
    client.ask("DELETE", f"/api/v1/namespaces/{real.name}")
    until(lambda: client.items(f"{real.path}/configmaps")[0]["metadata"].get("deletionTimestamp"), PATIENCE)
    with pytest.raises(ExecutorError, match=r"answered 403: .* because it is being terminated"):
        make(real, namespace=real.name, token_file=administrator).submit([job(1)])
    client.ask("PATCH", f"{real.path}/configmaps/keeps", {"metadata": {"finalizers": None}})


def test_a_token_that_the_server_does_not_know_is_told(real: Namespace, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    with pytest.raises(ExecutorError, match=r"does not take the token in .*/wrong: Unauthorized"):
        make(real, namespace=real.name, token_file=str(wrong)).observe()


# Names and deletions


def test_a_name_that_is_taken_is_ours_only_if_the_job_is(executor: KubernetesExecutor) -> None:
    one = job(1, DEAF, env={"PATH": "/bin:/usr/bin"})
    assert executor.submit([one, one]) == [Submitted(one.name, one.name)] * 2
    for other in (job(1, DEAF, store="0b"), job(1, "true")):
        (refused,) = executor.submit([other])
        assert isinstance(refused, Refused)
        assert (refused.later, "another Job schedd-0-1-1" in refused.reason) == (False, True)
    assert executor.find([one.name, "schedd-0-2-1"]) == {one.name: one.name}


def test_a_job_that_is_deleted_stays_until_its_pod_is_gone(real: Namespace, executor: KubernetesExecutor) -> None:
    one, two = job(1, DEAF, env={"PATH": "/bin:/usr/bin"}), job(2)
    executor.submit([one, two])
    until(lambda: executor.logs(one.name, 100) == "deaf\n" and running(executor, two.name), PATIENCE)
    executor.cancel([one.name, "schedd-0-99-1", "not/ours"], 1.0)
    assert "deletionTimestamp" in real.job(one.name)["metadata"]
    (refused,) = executor.submit([one])
    assert isinstance(refused, Refused)
    assert (refused.later, refused.after) == (True, 5.0)
    executor.cancel([one.name], 1.0)
    until(lambda: "deletionTimestamp" in real.pods(one.name)[0]["metadata"], PATIENCE)  # the collector's work
    assert running(executor, one.name)
    assert real.pods(one.name)[0]["metadata"]["deletionGracePeriodSeconds"] == 15
    kill_job(real.cluster.place, real.name, one.name)
    until(lambda: [found.name for found in executor.observe()] == [two.name], PATIENCE)
    assert executor.submit([one]) == [Submitted(one.name, one.name)]


def test_what_is_forgotten_leaves_nothing(real: Namespace, executor: KubernetesExecutor) -> None:
    executor.submit([job(1, "exit 3"), job(2, "kill -9 $$"), job(3, "true")])
    ended = [over(executor, f"schedd-0-{number}-1") for number in (1, 2, 3)]
    assert [(one.phase, one.exit_code, one.signal) for one in ended] == [
        (PlacementPhase.FAILED, 3, None),
        (PlacementPhase.FAILED, None, signal.SIGKILL),
        (PlacementPhase.SUCCEEDED, 0, None),
    ]
    executor.forget([one.name for one in ended])
    until(lambda: (list(executor.observe()), real.pods()) == ([], []), PATIENCE)
    executor.forget([one.name for one in ended])


def test_a_job_that_is_over_is_removed_after_its_time(real: Namespace) -> None:
    executor = make(real, namespace=real.name, ttl=1.0)
    executor.submit([job(1, "true"), job(2)])
    until(lambda: [one.name for one in executor.observe()] == ["schedd-0-2-1"], PATIENCE)
    assert len(real.pods()) == 1


def test_a_job_that_runs_for_too_long_has_timed_out(executor: KubernetesExecutor) -> None:
    executor.submit([job(1, limit=1.0)])
    ended = over(executor, "schedd-0-1-1")
    assert ended.phase is PlacementPhase.TIMED_OUT
    assert "DeadlineExceeded" in str(ended.reason)


def test_what_the_retries_of_a_job_are_is_nothing(real: Namespace, executor: KubernetesExecutor) -> None:
    executor.submit([job(1, "exit 3")])
    over(executor, "schedd-0-1-1")
    until(lambda: real.job("schedd-0-1-1")["status"].get("conditions"), PATIENCE)
    (condition,) = real.job("schedd-0-1-1")["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("Failed", "BackoffLimitExceeded")
    assert len(real.pods()) == 1


# Questions


def test_logs_come_from_the_node(real: Namespace, executor: KubernetesExecutor) -> None:
    executor.submit([job(1, """echo first; echo '{"last": 1}'""")])
    over(executor, "schedd-0-1-1")
    assert executor.logs("schedd-0-1-1", 1000) == 'first\n{"last": 1}\n'
    assert executor.logs("schedd-0-1-1", 12) == '{"last": 1}\n'
    assert executor.logs("schedd-0-99-1", 1000) is None
    missing = make(real, namespace=real.name, image="registry.example/nothing:1")
    missing.submit([job(2, "true")])
    until(lambda: "ImagePullBackOff" in str(getattr(seen(missing, "schedd-0-2-1"), "reason", "")), PATIENCE)
    assert missing.logs("schedd-0-2-1", 1000) is None  # the server answers 400


def test_a_list_in_pages_begins_anew_when_etcd_forgets(
    real: Namespace, executor: KubernetesExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "PAGE", 2)
    executor.submit([job(number) for number in range(1, 6)])
    asked, ask = [], executor._api.ask

    def compacting(method: str, path: str, **more: Any) -> kubernetes_api.KubernetesAnswer:
        answer = ask(method, path, **more)
        asked.append(answer.status)
        if len(asked) == 1:
            real.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "newer"}})
            real.cluster.compact()
        return answer

    monkeypatch.setattr(executor._api, "ask", compacting)
    assert sorted(executor.find([f"schedd-0-{number}-1" for number in range(9)])) == [
        f"schedd-0-{number}-1" for number in range(1, 6)
    ]
    assert asked == [200, 410, 200, 200, 200]
    assert len(executor.observe()) == 5


def test_the_example_is_what_a_server_takes_and_its_rights_suffice(
    real: Namespace, executor: KubernetesExecutor
) -> None:
    """All of its documents; the rights are those that each of these tests has."""
    for kind, made in documents().items():
        if kind not in WITH_RIGHTS:  # the namespace was made with these
            assert real.create(made)["metadata"]["uid"]
    found = executor.check()
    assert [one.text for one in found if not one.ok] == []
    assert found[0].text.startswith("Kubernetes v1.")
    assert found[-1].text == "quotas of the namespace are not shown to schedd; it does not need them"
    more = [*role(), {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["list"]}]
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{real.name}/roles/schedd"
    real.cluster.client.ask("PATCH", path, {"rules": more})
    limit(real, "count/jobs.batch", 10)
    until(lambda: executor.check()[-1].text == "quota most: count/jobs.batch 0 of 10", PATIENCE)


# Pods behind our back


def test_a_second_pod_of_a_job_changes_nothing(place: Place, real: Namespace) -> None:
    """The first one is deleted, as from a node that is drained, and the controller makes another."""
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin") and place.state(task_id) is TaskState.RUNNING)
    name = place.placements(task_id)[0].name
    (first,) = real.pods(name)
    real.cluster.client.ask("DELETE", f"{real.path}/pods/{first['metadata']['name']}")
    uids = set[str]()

    def second() -> bool:
        uids.update(pod["metadata"]["uid"] for pod in real.pods(name))
        return len(uids) == 2

    until(second, PATIENCE)
    goes_on_elsewhere(place, task_id)
    assert len(place.lines("begin")) == 2  # the second pod began nothing


@pytest.mark.parametrize("policy", ["Foreground", "Background"])
def test_a_job_that_is_deleted_by_hand_hands_its_task_back(place: Place, real: Namespace, policy: str) -> None:
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin") and place.state(task_id) is TaskState.RUNNING)
    path = real.path_of_job(place.placements(task_id)[0].name)
    real.cluster.client.ask("DELETE", path, {"propagationPolicy": policy})
    goes_on_elsewhere(place, task_id)


# Servers that are killed


@pytest.fixture
def apart(tmp_path: Path) -> Namespace:
    """A namespace of a cluster that no other test has."""
    return Namespace(RealKube.apart(), tmp_path)


@pytest.fixture
def place_apart(database: Database, tmp_path: Path, apart: Namespace) -> Iterator[Place]:
    made = Place(database.url, tmp_path, apart.settings())
    yield made
    made.close()


def test_tasks_end_while_the_api_server_is_dead_and_new_ones_wait(place_apart: Place, apart: Namespace) -> None:
    place, cluster = place_apart, apart.cluster
    first = [place.schedule("wait") for _ in range(4)]
    place.until(lambda: len(place.lines("begin")) == 4 and all(place.state(one) is TaskState.RUNNING for one in first))
    cluster.kill(SERVER)
    place.go()
    place.until(lambda: place.ended(*first))
    assert [place.outcomes(one) for one in first] == [["succeeded"]] * 4
    place.until(lambda: "Connection refused" in str(place.placer._link.trouble))
    later = place.schedule()
    place.placer.step()
    assert place.placements(later) == []
    cluster.start_server()
    place.until(lambda: place.ended(later) and not place.handles())
    assert place.outcomes(later) == ["succeeded"]
    assert len(place.lines("begin")) == 5
    assert place.placer._link.trouble is None


def test_a_cluster_without_its_controllers_starts_and_removes_nothing(place_apart: Place, apart: Namespace) -> None:
    place, cluster = place_apart, apart.cluster
    runs = place.schedule("wait")
    place.until(lambda: place.lines("begin") and place.state(runs) is TaskState.RUNNING)
    cluster.kill(MANAGER)
    waits = place.schedule()
    place.until(lambda: place.placements(waits) and place.placements(waits)[0].reason == "the Job has no pod yet")
    place.go()
    place.until(lambda: place.ended(runs))
    for _ in range(20):
        place.placer.step()
    assert len(place.placements(waits)) == 1
    cluster.start_manager()
    place.until(lambda: place.ended(waits) and not place.handles())
    assert (place.outcomes(runs), place.outcomes(waits)) == (["succeeded"], ["succeeded"])


def test_a_second_pod_does_not_end_the_first_ones_lease(place_apart: Place, apart: Namespace) -> None:
    """The first one's node is cut off, where it goes on, and it was removed by force. Another node has the second."""
    place, cluster = place_apart, apart.cluster
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin") and place.state(task_id) is TaskState.RUNNING)
    name = place.placements(task_id)[0].name
    (first,) = apart.pods(name)
    cluster.kill("node-1", number=signal.SIGSTOP)
    try:
        cluster.start_node("node-2")
        pod = f"{apart.path}/pods/{first['metadata']['name']}"
        cluster.client.ask("DELETE", pod, {"gracePeriodSeconds": 0})
        place.until(lambda: over(place.engine.inner, name).exit_code == NOT_MINE)
        (second,) = apart.pods(name)
        assert (first["spec"]["nodeName"], second["spec"]["nodeName"]) == ("node-1", "node-2")
        for _ in range(5):
            place.placer.step()
        assert place.state(task_id) is TaskState.RUNNING
        place.go()
        place.until(lambda: place.ended(task_id))
        assert (place.outcomes(task_id), len(place.lines("begin"))) == (["succeeded"], 1)
    finally:
        cluster.kill("node-1", number=signal.SIGCONT)
        cluster.kill("node-2")
