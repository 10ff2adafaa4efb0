"""What operators have of the executor ``kubernetes``: its check, its Role, and an example that fits together."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from scheduler.config.load import load
from scheduler.executors.kubernetes import MAY, KubernetesExecutor
from scheduler.executors.service import make_executor
from support.kube_api import KubeApi
from support.kube_jobs import documents, make, role
from support.kube_pods import IMAGE


def test_a_check_says_what_is_there_and_starts_nothing(executor: KubernetesExecutor, api: KubeApi) -> None:
    api.quotas = [
        {
            "metadata": {"name": "most"},
            "status": {"hard": {"count/jobs.batch": "10"}, "used": {"count/jobs.batch": "3"}},
        }
    ]
    api.warnings = ["would violate PodSecurity"]
    found = executor.check()
    assert [one.text for one in found if not one.ok] == []
    texts = [one.text for one in found]
    assert texts[0] == f"Kubernetes v1.31.0 at {api.url}, namespace jobs"
    assert "schedd may create jobs" in texts
    assert "schedd may get pods/log" in texts
    assert "the cluster warns: would violate PodSecurity" in texts
    assert f"a Job with image {IMAGE} would be taken; nothing was started" in texts
    assert texts[-1] == "quota most: count/jobs.batch 3 of 10"
    assert executor.observe() == []


def test_a_check_finds_what_is_amiss(api: KubeApi) -> None:
    found = make(api, pod={"nodeSelektor": {}}).check()
    assert "nodeSelektor" in next(one.text for one in found if not one.ok)
    api.rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]}]
    found = make(api).check()
    assert {one.text for one in found if not one.ok} == {
        f"schedd may not {what}: a Role has to allow it"
        for what in ("create jobs", "get jobs", "delete jobs", "list pods", "get pods/log")
    }


def test_the_examples_role_allows_what_is_needed_and_no_more(executor: KubernetesExecutor, api: KubeApi) -> None:
    """Jobs of tasks above run under it, too."""
    api.rules = role()
    found = executor.check()
    assert [one.text for one in found if not one.ok] == []
    assert found[-1].text == "quotas of the namespace are not shown to schedd; it does not need them"
    given = {
        (group, *resource.partition("/")[::2], verb)
        for rule in role()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert given == set(MAY)


def test_the_example_fits_together(api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration is one that schedd takes and whose Jobs a cluster does; its names are names of each other."""
    found = documents()
    file = tmp_path / "config.toml"
    file.write_text(found["ConfigMap"]["data"]["config.toml"])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    config = load(str(file), {"SCHEDD_STORE__URL": "postgresql+psycopg://schedd@db/schedd"})
    make_executor(config, "cluster").close()
    settings = tomllib.loads(file.read_text())["executors"]["cluster"]
    del settings["type"]
    settings["env_from_secret"] = tuple(settings["env_from_secret"])
    with_it = make(api, **settings)
    assert [one.text for one in with_it.check() if not one.ok] == []
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert [one["name"] for one in found["RoleBinding"]["subjects"]] == [pod["serviceAccountName"]]
    assert pod["volumes"][0]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert (
        found["Deployment"]["spec"]["selector"]["matchLabels"]
        == found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    )
    assert container["command"][-1] == f"{container['volumeMounts'][0]['mountPath']}/config.toml"
    assert settings["pod"]["volumes"] == pod["volumes"]
    assert settings["container"]["volumeMounts"] == container["volumeMounts"]
    assert settings["image"] == container["image"]
    assert [one["secretRef"]["name"] for one in container["envFrom"]] == list(settings["env_from_secret"])
    assert pod["terminationGracePeriodSeconds"] > config.worker.drain
