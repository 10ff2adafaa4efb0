"""The files in containers/ agree with each other and with the code. containers/try.sh runs the entry point."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from scheduler.cli.root import root
from scheduler.config.load import load

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "containers"
DOCKERFILE = (PLACE / "Dockerfile").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "guides" / "containers.md").read_text(encoding="utf-8")
TRIED = (PLACE / "try.sh").read_text(encoding="utf-8")
USER = 10001


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load((PLACE / "compose.yml").read_text(encoding="utf-8"))["services"])


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    documents = yaml.safe_load_all((PLACE / "kubernetes.yaml").read_text(encoding="utf-8"))
    return {one["kind"]: one for one in documents}


def test_the_image_installs_extras_that_there_are_and_is_no_root() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = re.search(r"/src\[([\w,]+)\]", DOCKERFILE)
    assert named is not None
    assert set(named[1].split(",")) <= extras.keys()
    assert f"[{named[1]}]" in TRIED
    assert f"USER {USER}:{USER}" in DOCKERFILE
    assert DOCKERFILE.rindex("USER ") > DOCKERFILE.rindex("RUN ")
    assert 'ENTRYPOINT ["tini", "--", "schedd"]' in DOCKERFILE  # no shell between pid 1 and the signals
    assert "/readyz" in DOCKERFILE


def test_the_script_starts_as_the_image_does() -> None:
    assert f"--reuid {USER} --regid {USER}" in TRIED
    command = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert command is not None
    assert f"exec tini -- schedd {' '.join(yaml.safe_load(command[1]))}" in TRIED
    assert os.access(ROOT / "Makefile", os.R_OK)
    assert "containers/try.sh" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["compose", "kubernetes"])
def test_configurations_are_valid(name: str, manifest: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    text = (PLACE / "config.toml").read_text(encoding="utf-8")
    file.write_text(text if name == "compose" else manifest["ConfigMap"]["data"]["config.toml"], encoding="utf-8")
    assert load(str(file), {}, str(tmp_path)).metrics.listen == "0.0.0.0:9464"


def test_compose_has_the_whole_fleet_and_only_loopback_ports(services: dict[str, Any]) -> None:
    assert set(services) == {"postgres", "upgrade", "daemon-1", "daemon-2", "console", "prometheus", "grafana"}
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert all(f"http://{port.rpartition(':')[0]}" in GUIDE for port in service.get("ports", []))
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            if source.startswith(".") and source != "./console_users":  # which the guide has you write
                assert (PLACE / source).exists(), source
                assert mode == ["ro"], target


def test_containers_of_schedd_are_confined_and_stop_in_time(services: dict[str, Any]) -> None:
    for name in ("upgrade", "daemon-1", "daemon-2", "console"):
        service = services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert (
            "/var/lib/schedd:mode=1777" in service["tmpfs"]
        )  # the user's to write to, also where an engine knows no uid=
    drain = load(str(PLACE / "config.toml"), {}, str(PLACE)).worker.drain
    assert int(services["daemon-1"]["stop_grace_period"].removesuffix("s")) > drain


def test_commands_of_compose_exist(services: dict[str, Any]) -> None:
    for name in ("upgrade", "console"):
        program, _, _, *words = services[name]["entrypoint"]
        assert program == "schedctl"
        command: Any = root
        for word in words:
            command = command.get_command(click.Context(command), word)
            assert command is not None, words


def test_prometheus_asks_the_daemons_by_their_names(services: dict[str, Any]) -> None:
    config = yaml.safe_load((PLACE / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "schedd"
    (targets,) = (one["targets"] for one in job["static_configs"])
    assert targets == [f"{name}:9464" for name in services if name.startswith("daemon-")]
    plain = yaml.safe_load((ROOT / "observability" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    assert config["global"] == plain["global"]
    (source,) = yaml.safe_load((PLACE / "grafana.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_the_deployment_probes_drains_and_is_confined(manifest: dict[str, Any]) -> None:
    spec = manifest["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/startupz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    drain = tomllib.loads(manifest["ConfigMap"]["data"]["config.toml"])["worker"]["drain"]
    assert pod["terminationGracePeriodSeconds"] > int(drain.removesuffix("s"))
    assert "kill -TERM 1" in container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (USER, True)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/etc/schedd", "/var/lib/schedd", "/tmp"} == mounted
    budget = manifest["PodDisruptionBudget"]["spec"]
    assert budget["minAvailable"] < spec["replicas"]
    labels = spec["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"] == spec["selector"]["matchLabels"] == labels
