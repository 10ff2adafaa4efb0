"""The unit files: what they must say, and what systemd-analyze thinks of them where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from scheduler.config.model import Config

UNITS = Path(__file__).parents[1] / "systemd"
SYSTEM, USER = "schedd.service", "schedd-user.service"
DELEGATE = "schedd.service.d/delegate.conf"
ANALYZE = shutil.which("systemd-analyze")
needs_analyze = pytest.mark.needs("systemd-analyze")

HARDENING = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "PrivateUsers": "yes",
    "ProtectClock": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHostname": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectProc": "invisible",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "LockPersonality": "yes",
    "MemoryDenyWriteExecute": "yes",
    "RemoveIPC": "yes",
    "SystemCallArchitectures": "native",
    "SystemCallErrorNumber": "EPERM",
}


def read_unit(*names: str) -> dict[str, dict[str, list[str]]]:
    """Sections, directives, and their values in order; later files are drop-ins of the first."""
    sections: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        section = ""
        for line in (UNITS / name).read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                section = line.strip("[]")
            elif line and not line.startswith("#"):
                key, _, value = line.partition("=")
                sections[section][key].append(value)
    return sections


@pytest.mark.parametrize("name", [SYSTEM, USER])
def test_the_service_is_supervised(name: str) -> None:
    unit = read_unit(name)
    service = unit["Service"]
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert service["ExecReload"] == ["/bin/sh -c 'kill -HUP \"$$MAINPID\"'"]
    assert service["Restart"] == ["on-failure"]
    assert service["StateDirectory"] == ["schedd"]
    assert service["KillMode"] == ["mixed"], "SIGTERM is for the daemon, which lets its tasks finish"
    assert service["RestartPreventExitStatus"] == ["2"]
    assert int(service["RestartSec"][0]) >= 1
    assert unit["Unit"]["StartLimitIntervalSec"] == ["0"]
    config = Config()
    assert int(service["TimeoutStopSec"][0]) > config.worker.drain + 10
    assert int(service["WatchdogSec"][0]) >= config.worker.lease


@pytest.mark.parametrize("name", [SYSTEM, USER])
def test_the_service_is_restricted(name: str) -> None:
    service = read_unit(name)["Service"]
    assert {key: service[key][-1] for key in HARDENING if key in service} == HARDENING
    assert service["SystemCallFilter"] == ["@system-service", "~@privileged @resources"]


def test_the_system_service_runs_as_its_own_user() -> None:
    service = read_unit(SYSTEM)["Service"]
    assert service["User"] == service["Group"] == ["schedd"]
    assert service["ProtectHome"] == ["yes"]
    assert service["WorkingDirectory"] == ["/var/lib/schedd"]
    assert service["ExecStart"] == ["/opt/schedd/bin/schedd --config /etc/schedd/config.toml"]


def test_the_drop_in_delegates_the_control_group() -> None:
    service = read_unit(SYSTEM, DELEGATE)["Service"]
    assert service["Delegate"] == ["yes"]
    assert service["ProtectControlGroups"][-1] == "no"


def analyze(*arguments: str, runtime: Path) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C",
        "XDG_RUNTIME_DIR": str(runtime),
        "HOME": str(runtime),
    }
    done = subprocess.run(
        [str(ANALYZE), *arguments], capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_analyze
@pytest.mark.parametrize(("name", "manager"), [(SYSTEM, "--system"), (USER, "--user")])
def test_verify_finds_nothing(name: str, manager: str, tmp_path: Path) -> None:
    text = (UNITS / name).read_text(encoding="utf-8")
    # the daemon is not installed here, and verify wants the program to exist
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", text, flags=re.MULTILINE)
    unit = tmp_path / "schedd.service"
    unit.write_text(text, encoding="utf-8")
    shutil.copytree(UNITS / f"{name}.d", tmp_path / "schedd.service.d")
    output = analyze(manager, "--man=no", "verify", str(unit), runtime=tmp_path)
    # it loads what else is installed too, and tells about that; only lines about ours count
    assert [line for line in output.splitlines() if "schedd" in line] == []


@needs_analyze
@pytest.mark.parametrize(
    ("name", "drop_in", "limit"),
    [(SYSTEM, None, 1.5), (SYSTEM, DELEGATE, 1.5), (USER, None, 1.5)],
)
def test_exposure(name: str, drop_in: str | None, limit: float, tmp_path: Path) -> None:
    units = tmp_path / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    shutil.copy(UNITS / name, units / name)
    if drop_in:
        (units / f"{name}.d").mkdir()
        shutil.copy(UNITS / drop_in, units / drop_in)
    arguments = ("security", "--offline=true", "--no-pager", f"--root={tmp_path}", name)
    output = analyze(*arguments, runtime=tmp_path)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", output)
    assert found, output
    assert float(found[1]) <= limit, output
