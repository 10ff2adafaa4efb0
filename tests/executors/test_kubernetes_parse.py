"""What the executor ``kubernetes`` makes of tasks, of settings, and of what a cluster says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import ConfigError, Resources
from scheduler.executors import kubernetes_api, kubernetes_parse
from scheduler.executors.kubernetes import KubernetesExecutor
from scheduler.executors.kubernetes_api import KubernetesAnswer
from scheduler.executors.kubernetes_spec import OPTIONS, label_value, manifest, wrong_option
from scheduler.executors.ports import Job, PlacementPhase
from support.kube_cluster import LABEL

NAME = "schedd-0a1b2c3d-7-1"
MADE = {"image": "registry.example/schedd:1", "server": "https://cluster:6443", "namespace": "jobs"}
LABELS = {"store": "0a1b2c3d", "task": "7", "claim": "1", "kind": "my.mod:Fit", "queue": "a b"}


def executor(**settings: Any) -> KubernetesExecutor:
    return KubernetesExecutor("it", KubernetesExecutor.Settings(**{**MADE, **settings}))


def spec(job: Job, **settings: Any) -> Any:
    return manifest(executor(**settings)._template, job)


def pod(phase: str, state: dict[str, Any] | None = None, name: str = "p", node: str = "n1", **more: Any) -> Any:
    """``more``: of its status; ``deleted``: it is being deleted."""
    meta = {"name": name, "creationTimestamp": name}
    if more.pop("deleted", False):
        meta["deletionTimestamp"] = "2026-11-24T00:00:00Z"
    if state is not None:
        more["containerStatuses"] = [{"name": "proxy", "state": {}}, {"name": "schedd-job", "state": state}]
    return {"metadata": meta, "spec": {"nodeName": node} if node else {}, "status": {"phase": phase, **more}}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def condition(kind: str, reason: str, message: str = "", status: str = "True") -> list[dict[str, str]]:
    return [{"type": kind, "status": status, "reason": reason, "message": message}]


RUNS = {"running": {"startedAt": "2026-11-24T00:00:00Z"}}
WHY = "0/3 nodes are available: 3 Insufficient cpu."


@pytest.mark.parametrize(
    ("found", "phase", "reason"),
    [
        (pod("Pending", node=""), PlacementPhase.QUEUED, "pod p"),
        (
            pod("Pending", node="", conditions=condition("PodScheduled", "Unschedulable", WHY, "False")),
            PlacementPhase.QUEUED,
            f"pod p, Unschedulable: {WHY}",
        ),
        (pod("Pending"), PlacementPhase.STARTING, "pod p"),
        (pod("Pending", {"waiting": {"reason": "ContainerCreating"}}), PlacementPhase.STARTING, "pod p"),
        (
            pod("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}}),
            PlacementPhase.STARTING,
            'pod p, ImagePullBackOff: Back-off pulling image "x"',
        ),
        (pod("Pending", {"waiting": {"reason": "InvalidImageName"}}), PlacementPhase.FAILED, "pod p, InvalidImageName"),
        (pod("Running", RUNS), PlacementPhase.RUNNING, "pod p"),
        (pod("Running", RUNS, deleted=True), PlacementPhase.RUNNING, "pod p"),
        (pod("Unknown", RUNS, reason="NodeLost"), PlacementPhase.RUNNING, "pod p, NodeLost"),
        (pod("Running", ended(0, "Completed")), PlacementPhase.SUCCEEDED, "pod p"),  # another container goes on
        (pod("Succeeded"), PlacementPhase.SUCCEEDED, "pod p"),
        (pod("Failed", ended(3)), PlacementPhase.FAILED, "pod p, exit status 3"),
        (pod("Failed", ended(137)), PlacementPhase.FAILED, "pod p, ended by SIGKILL"),
        (pod("Failed", ended(137, "OOMKilled")), PlacementPhase.FAILED, "pod p, ended by SIGKILL, OOMKilled"),
        (
            pod("Failed", ended(128, "StartError", "exec: no such file")),
            PlacementPhase.FAILED,
            "pod p, exit status 128, StartError: exec: no such file",
        ),
        (
            pod("Failed", reason="Evicted", message="The node was low on resource: memory."),
            PlacementPhase.FAILED,
            "pod p, Evicted: The node was low on resource: memory.",
        ),
        (
            pod(
                "Failed", ended(143), reason="Evicted", conditions=condition("DisruptionTarget", "TerminationByKubelet")
            ),
            PlacementPhase.PREEMPTED,
            "pod p, ended by SIGTERM, Evicted",
        ),
        (
            pod("Failed", ended(137), reason="Terminated", message="in response to imminent node shutdown"),
            PlacementPhase.PREEMPTED,
            "pod p, ended by SIGKILL, Terminated: in response to imminent node shutdown",
        ),
        (
            pod("Failed", ended(137), reason="DeadlineExceeded"),
            PlacementPhase.TIMED_OUT,
            "pod p, ended by SIGKILL, DeadlineExceeded",
        ),
        (pod("Failed", ended(143), deleted=True), PlacementPhase.CANCELLED, "pod p, ended by SIGTERM"),
        (pod("Failed", ended(75), deleted=True), PlacementPhase.FAILED, "pod p, exit status 75"),
    ],
)
def test_pods_become_phases(found: Any, phase: PlacementPhase, reason: str) -> None:
    seen = kubernetes_parse.seen_of(NAME, {}, [found])
    assert (seen.name, seen.handle, seen.phase, seen.reason) == (NAME, NAME, phase, reason)
    assert (seen.exit_code is None) or (seen.signal is None)


@pytest.mark.parametrize(
    ("job", "phase", "reason"),
    [
        ({}, PlacementPhase.QUEUED, "the Job has no pod yet"),
        ({"spec": {"suspend": True}}, PlacementPhase.QUEUED, "the Job is suspended"),
        (
            {"status": {"conditions": condition("Suspended", "JobSuspended")}},
            PlacementPhase.QUEUED,
            "the Job has no pod yet",
        ),
        (
            {"status": {"conditions": condition("Complete", "CompletionsReached")}},
            PlacementPhase.SUCCEEDED,
            "the Job is complete",
        ),
        (
            {"status": {"conditions": condition("Failed", "DeadlineExceeded", "too long")}},
            PlacementPhase.TIMED_OUT,
            "DeadlineExceeded: too long",
        ),
        (
            {"status": {"conditions": condition("Failed", "BackoffLimitExceeded")}},
            PlacementPhase.FAILED,
            "BackoffLimitExceeded",
        ),
        ({"metadata": {"deletionTimestamp": "now"}}, PlacementPhase.CANCELLED, "the Job is being deleted"),
        (None, PlacementPhase.CANCELLED, "the Job was deleted"),
    ],
)
def test_jobs_without_pods_become_phases(job: Any, phase: PlacementPhase, reason: str) -> None:
    seen = kubernetes_parse.seen_of(NAME, job, [])
    assert (seen.phase, seen.reason) == (phase, reason)


def test_a_job_lives_as_long_as_one_of_its_pods() -> None:
    """And of two that are over the one tells how it ended that had the claim."""
    over = {"status": {"conditions": condition("Complete", "CompletionsReached")}}
    first = pod("Running", RUNS, name="p1", deleted=True)
    second = pod("Failed", ended(75), name="p2")
    assert kubernetes_parse.seen_of(NAME, over, [second, first]).phase is PlacementPhase.RUNNING
    seen = kubernetes_parse.seen_of(NAME, over, [pod("Failed", ended(137), name="p1"), second])
    assert (seen.signal, seen.exit_code, seen.reason) == (9, None, "pod p1, ended by SIGKILL")
    seen = kubernetes_parse.seen_of(NAME, over, [second])
    assert (seen.phase, seen.exit_code) == (PlacementPhase.FAILED, 75)


@pytest.mark.parametrize(
    ("name", "task", "claim", "ours"),
    [
        ("schedd-0a1b2c3d-7-1", "7", "1", True),
        ("schedd-0a1b2c3d-w3-17", "0", "17", True),  # of a worker
        ("schedd-0a1b2c3d-7-1", "8", "1", False),
        ("schedd-0a1b2c3d-7-1", "7", None, False),
        ("schedd-7-1", "7", "1", False),
    ],
)
def test_a_job_is_ours_if_its_labels_fit_its_name(name: str, task: str, claim: str | None, ours: bool) -> None:
    labels = {"schedd.dev/task": task, "schedd.dev/claim": claim}
    assert kubernetes_parse.is_ours({"metadata": {"name": name, "labels": labels}}) == ours


@pytest.mark.parametrize(
    ("status", "reason", "message", "later"),
    [
        (403, "Forbidden", 'jobs.batch "x" is forbidden: exceeded quota: q, requested: count/jobs.batch=1', True),
        (429, "TooManyRequests", "too many requests", True),
        (409, "Conflict", "the object has been modified", True),
        (403, "Forbidden", 'admission webhook "policy" denied the request', False),
        (422, "Invalid", "spec.template.spec.containers[0].image: Required value", False),
        (400, "BadRequest", 'unknown field "spec.template.spec.nodeSelektor"', False),
        (403, "Forbidden", 'User "x" cannot create resource "jobs" in API group "batch"', None),
        (403, "Forbidden", "unable to create: namespace jobs is being terminated", None),
        (404, "NotFound", 'namespaces "jobs" not found', None),
    ],
)
def test_refusals_are_for_now_or_for_good_or_of_everything(
    status: int, reason: str, message: str, later: bool | None
) -> None:
    refused = kubernetes_parse.refusal(NAME, KubernetesAnswer(status, {"reason": reason, "message": message}, "", None))
    assert (None if refused is None else refused.later) == later
    if refused is not None:
        assert refused.reason == message
        assert (refused.after is not None) == later


@given(st.text(max_size=100))
def test_labels_fit(text: str) -> None:
    made = label_value(text)
    assert LABEL.fullmatch(made)
    assert made == text or not LABEL.fullmatch(text)


def test_labels_that_were_cut_stay_apart() -> None:
    long = "a" * 80
    assert label_value(f"{long}1") != label_value(f"{long}2")
    assert label_value("my.mod:Fit") == "my.mod_Fit-" + label_value("my.mod:Fit")[-8:]


def test_a_job_is_what_the_cluster_needs_to_know() -> None:
    resources = Resources(cpu=1.5, memory="1G", gpu=2, disk="2G")
    job = Job(
        name=NAME,
        argv=[sys.executable, "-m", "x", "$(HOME)"],
        env={"SCHEDD_CONFIG": "/etc/schedd/config.toml"},
        resources=resources,
        limit=90.2,
        labels=LABELS,
    )
    made = spec(
        job,
        python="/usr/bin/python3",
        gpu="amd.com/gpu",
        ttl=600.0,
        grace=7.5,
        env={"TZ": "UTC"},
        env_from_secret=("schedd-store",),
        labels={"app": "mine"},
        pod={"nodeSelector": {"disk": "ssd"}, "serviceAccountName": "jobs", "imagePullSecrets": [{"name": "pull"}]},
        container={
            "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "resources": {"limits": {"cpu": "4", "memory": "1"}},
        },
    )
    labels = made["metadata"]["labels"]
    assert made["metadata"]["name"] == NAME
    assert {key: labels[f"schedd.dev/{key}"] for key in ("executor", "store", "task", "claim")} == {
        "executor": "it",
        "store": "0a1b2c3d",
        "task": "7",
        "claim": "1",
    }
    assert labels["app"] == "mine"
    assert (labels["schedd.dev/kind"][:10], labels["schedd.dev/queue"][:3]) == ("my.mod_Fit", "a_b")
    assert re.fullmatch("[0-9a-f]{64}", made["metadata"]["annotations"]["schedd.dev/spec"])
    assert (made["spec"]["backoffLimit"], made["spec"]["ttlSecondsAfterFinished"]) == (0, 600)
    template = made["spec"]["template"]
    assert template["metadata"]["labels"] == labels
    inner = template["spec"]
    (container,) = inner.pop("containers")
    assert inner == {
        "activeDeadlineSeconds": 91,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": "pull"}],
        "nodeSelector": {"disk": "ssd"},
        "restartPolicy": "Never",
        "serviceAccountName": "jobs",
        "terminationGracePeriodSeconds": 13,
    }
    assert container == {
        "name": "schedd-job",
        "image": MADE["image"],
        "command": ["/usr/bin/python3", "-m", "x", "$$(HOME)"],
        "env": [
            {"name": "SCHEDD_CONFIG", "value": "/etc/schedd/config.toml"},
            {"name": "TZ", "value": "UTC"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "envFrom": [{"secretRef": {"name": "schedd-store"}}],
        "resources": {
            "requests": {
                "cpu": "1500m",
                "memory": str(resources.memory_bytes),
                "ephemeral-storage": str(resources.disk_bytes),
                "amd.com/gpu": "2",
            },
            "limits": {
                "cpu": "4",
                "memory": str(resources.memory_bytes),
                "ephemeral-storage": str(resources.disk_bytes),
                "amd.com/gpu": "2",
            },
        },
    }


def test_a_digest_tells_jobs_apart() -> None:
    def digest(job: Job, **settings: Any) -> str:
        return str(spec(job, **settings)["metadata"]["annotations"]["schedd.dev/spec"])

    one = Job(name=NAME, argv=["true"], labels=LABELS)
    assert digest(one) == digest(Job(name=NAME, argv=["true"], labels=dict(reversed(LABELS.items()))))
    assert digest(one) != digest(Job(name=NAME, argv=["false"], labels=LABELS))
    assert digest(one) != digest(one, image="registry.example/schedd:2")


def test_options_are_laid_over_the_settings() -> None:
    options = {
        "image": "other",
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "gpu"}],
        "priorityClassName": "high",
    }
    assert sorted(options) == list(OPTIONS)
    made = spec(
        Job(name=NAME, argv=["true"], options=options),
        pod={"nodeSelector": {"disk": "ssd", "gpu": "any"}, "tolerations": [{"key": "spot"}]},
    )["spec"]["template"]["spec"]
    assert made["containers"][0]["image"] == "other"
    assert made["nodeSelector"] == {"disk": "ssd", "gpu": "a100"}
    assert made["tolerations"] == [{"key": "spot"}, {"key": "gpu"}]
    assert made["priorityClassName"] == "high"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"hostNetwork": True}, "there is no 'hostNetwork'"),
        ({"image": "evil"}, "image 'evil' is not among"),
        ({"image": 3}, "image must be a text"),
        ({"nodeSelector": ["a"]}, "nodeSelector must have texts"),
        ({"nodeSelector": {"a": 1}}, "nodeSelector must have texts"),
        ({"tolerations": {"key": "gpu"}}, "tolerations must be a list"),
        ({"priorityClassName": ""}, "priorityClassName must be a text"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], why: str) -> None:
    assert why in str(wrong_option(options, ("registry.example/schedd:1",)))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"image": ""}, "image: '' is not"),
        ({"images": ("a b",)}, "image: 'a b' is not"),
        ({"server": "http://cluster:6443"}, "server: must begin with https"),
        ({"server": "cluster:6443"}, "server: must be an address"),
        ({"server": "https://me:secret@cluster"}, "server: must be an address"),
        ({"server": "https://cluster:x"}, "server: must be an address"),
        ({"server": None}, "server: is needed outside"),
        ({"namespace": None}, "namespace: is needed with server"),
        ({"namespace": "My/Jobs"}, "namespace: 'My/Jobs' cannot"),
        ({"token_file": "token"}, "token_file: must be an absolute path"),
        ({"ca_file": "ca.crt"}, "ca_file: must be an absolute path"),
        ({"pod": {"restartPolicy": "Always"}}, "pod: restartPolicy is schedd's own"),
        ({"pod": {"containers": []}}, "pod: containers is schedd's own"),
        ({"pod": {"tolerations": {"key": "gpu"}}}, "pod: tolerations must be a list"),
        ({"container": {"command": ["sh"]}}, "container: command is schedd's own"),
        ({"container": {"env": {"A": "b"}}}, "container: env must be a list"),
        ({"container": {"resources": []}}, "container: resources must be a table"),
        ({"labels": {"schedd.dev/task": "1"}}, "labels: 'schedd.dev/task' cannot be set"),
        ({"labels": {"app": "a b"}}, "labels: 'a b' cannot be the value"),
        ({"annotations": {"a b": "c"}}, "annotations: 'a b' cannot be set"),
        ({"env": {"A=B": "c"}}, "env: 'A=B' is not the name"),
        ({"env": {"A": 1}}, "env: the value of A must be a text, not 1"),
        ({"ttl": -1.0}, "ttl: must be 0 or more"),
        ({"timeout": 0.0}, "timeout: must be above 0"),
        ({"gpu": "gpu"}, "gpu: 'gpu' is not a resource"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    settings: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError) as error:
        executor(**settings)
    assert str(error.value).startswith(f"executors.it.{why}")
    assert "secret" not in str(error.value)


def test_in_a_pod_the_cluster_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    monkeypatch.setattr(kubernetes_api, "SERVICE_ACCOUNT", str(tmp_path))
    (tmp_path / "namespace").write_text("mine\n")
    made = executor(server=None, namespace=None)
    assert made._api.server == "https://[fd00::1]:6443"
    assert made._api.namespace == "mine"
    access = made._api._access
    assert (access.token_file, access.ca_file) == (tmp_path / "token", tmp_path / "ca.crt")
    assert executor(server=None, namespace="other")._api.namespace == "other"
