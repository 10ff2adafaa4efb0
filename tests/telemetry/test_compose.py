"""The compose file starts what the guide says, on the ports that the other files name, with files that there are.

Nothing is started: neither a container engine nor the images are at hand where the tests run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from support.dashboards import DASHBOARD, PLACE, ROOT, RULES

COMPOSE = PLACE / "compose"
README = (PLACE / "README.md").read_text(encoding="utf-8")
PORTS = {"prometheus": 9090, "alertmanager": 9093, "node-exporter": 9100, "grafana": 3000}
GUIDE = (ROOT / "docs" / "guides" / "monitoring.md").read_text(encoding="utf-8")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(read(COMPOSE / "compose.yml")["services"])


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Where in the container -> what is there, of files of ours."""
    parts = [volume.split(":") for volume in service["volumes"]]
    return {target: source for source, target, *_ in parts if source.startswith(".")}


def in_container(service: dict[str, Any], path: str) -> Path:
    """The file of ours that a container sees at this path."""
    for target, source in mounts(service).items():
        below = PurePosixPath(path)
        if below.is_relative_to(target):
            return (COMPOSE / source / below.relative_to(target)).resolve()
    raise AssertionError(f"nothing is mounted at {path}")


def option(service: dict[str, Any], name: str) -> str:
    (found,) = [one.partition("=")[2] for one in service["command"] if one.partition("=")[0] == name]
    return str(found)


def port_of(name: str, service: dict[str, Any]) -> int:
    if name == "grafana":
        assert service["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
        return int(service["environment"]["GF_SERVER_HTTP_PORT"])
    host, _, port = option(service, "--web.listen-address").partition(":")
    assert host == "127.0.0.1"
    return int(port)


def test_each_service_listens_where_the_guide_says(services: dict[str, Any]) -> None:
    assert {name: port_of(name, service) for name, service in services.items()} == PORTS
    for name, service in services.items():
        assert service["network_mode"] == "host"
        assert "ports" not in service, "with the host's network there are none to publish"
        assert re.fullmatch(r"[a-z]+/[a-z-]+:v?\d+\.\d+\.\d+", service["image"]), f"{name}: a version of its own"
        assert f"127.0.0.1:{PORTS[name]}" in README
        assert service["image"] in README, "the guide names the images, which nothing here has pulled"


def test_what_is_mounted_is_there(services: dict[str, Any]) -> None:
    named = read(COMPOSE / "compose.yml")["volumes"]
    for service in services.values():
        for volume in service["volumes"]:
            source, target, *mode = volume.split(":")
            assert target.startswith("/")
            if source.startswith("."):
                assert (COMPOSE / source).exists(), source
                assert mode == ["ro"], f"{source} is ours: no container writes it"
            else:
                assert source in named or source.startswith("/")


def test_prometheus_scrapes_as_the_one_without_containers(services: dict[str, Any]) -> None:
    service = services["prometheus"]
    path = option(service, "--config.file")
    config, plain = read(in_container(service, path)), read(PLACE / "prometheus" / "prometheus.yml")
    assert config["scrape_configs"] == plain["scrape_configs"]
    assert config["global"] == plain["global"]
    (rules,) = config["rule_files"]
    assert in_container(service, str(PurePosixPath(path).parent / rules)) == RULES
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert jobs["node"] == [f"127.0.0.1:{PORTS['node-exporter']}"]
    assert jobs["schedd"][0] in GUIDE
    (alerting,) = config["alerting"]["alertmanagers"]
    assert alerting["static_configs"] == [{"targets": [f"127.0.0.1:{PORTS['alertmanager']}"]}]


def test_alerts_of_each_rule_have_a_receiver(services: dict[str, Any]) -> None:
    service = services["alertmanager"]
    config = read(in_container(service, option(service, "--config.file")))
    assert config["route"]["receiver"] in [one["name"] for one in config["receivers"]]


def test_grafana_is_provisioned_with_the_dashboard_and_its_source(services: dict[str, Any]) -> None:
    service = services["grafana"]
    (source,) = read(in_container(service, "/etc/grafana/provisioning/datasources/prometheus.yml"))["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert source["url"] == f"http://127.0.0.1:{PORTS['prometheus']}"
    (provider,) = read(in_container(service, "/etc/grafana/provisioning/dashboards/schedd.yml"))["providers"]
    assert provider["type"] == "file"
    assert in_container(service, f"{provider['options']['path']}/{DASHBOARD.name}") == DASHBOARD


def test_node_exporter_reads_what_the_timer_writes(services: dict[str, Any]) -> None:
    service = services["node-exporter"]
    timer = (PLACE / "systemd" / "schedd-metrics.service").read_text(encoding="utf-8")
    written = re.search(r"--file (\S+)", timer)
    assert written is not None
    target = option(service, "--collector.textfile.directory")
    assert f"{PurePosixPath(written[1]).parent}:{target}:ro" in service["volumes"]


def test_the_programs_of_debian_accept_the_files(services: dict[str, Any], tmp_path: Path) -> None:
    """Those of the machine are other versions than the images."""
    if promtool := shutil.which("promtool"):
        service = services["prometheus"]
        for name in ("prometheus.yml", "schedd.rules.yml"):
            shutil.copy(in_container(service, f"/etc/prometheus/{name}"), tmp_path)
        subprocess.run([promtool, "check", "config", str(tmp_path / "prometheus.yml")], check=True, timeout=60)
    if amtool := shutil.which("amtool"):
        subprocess.run([amtool, "check-config", str(COMPOSE / "alertmanager.yml")], check=True, timeout=60)
