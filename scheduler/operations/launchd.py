"""A service of macOS's launchd: a file of its own, as it knows no drop-ins and hands over no credentials."""

from __future__ import annotations

import plistlib
from pathlib import Path

from scheduler.errors import ConfigError
from scheduler.operations.service_manager import MARK, USER, Machine, ServicePlan, ServiceStatus, Whose, Wish

STOP_S = 60  # as TimeoutStopSec= of the unit of systemd


def plan(machine: Machine, wish: Wish) -> ServicePlan:
    """The files and commands of the service. Raises ConfigError."""
    if wish.credentials or wish.drop_ins:
        raise ConfigError("launchd hands over no credentials and has no drop-ins: leave these options out")
    if wish.whose is Whose.SYSTEM and not machine.has_user(wish.run_as):
        raise ConfigError(f"there is no user {wish.run_as}: name one with --run-as")
    unit = unit_path(machine, wish.whose)
    domain = _domain(machine, wish.whose)
    return ServicePlan({unit: render(machine, wish)}, [], [], ["launchctl", "bootstrap", domain, str(unit)])


def unit_path(machine: Machine, whose: Whose) -> Path:
    """The file of the service."""
    if whose is Whose.SYSTEM:
        return machine.place(f"/Library/LaunchDaemons/{USER}.plist")
    return machine.home / f"Library/LaunchAgents/{USER}.plist"


def stop(machine: Machine, whose: Whose) -> None:
    """End the service, and start it no more."""
    machine.run(["launchctl", "bootout", f"{_domain(machine, whose)}/{USER}"])


def state_place(machine: Machine) -> Path:
    """Where the store is, unless configured elsewhere."""
    return machine.home / "Library/Application Support/schedd"


def status(machine: Machine, whose: Whose, unit: Path) -> ServiceStatus:
    """How an installed service is."""
    code, text = machine.run(["launchctl", "print", f"{_domain(machine, whose)}/{USER}"])
    found = dict(line.strip().split(" = ", 1) for line in text.splitlines() if " = " in line)
    state = found.get("state", "not loaded") if code == 0 else "not loaded"
    pid = int(found["pid"]) if found.get("pid", "").isdigit() else None
    return ServiceStatus(whose, str(unit), state, pid, "yes", None, None, state == "running")


def render(machine: Machine, wish: Wish) -> str:
    """The file for launchd."""
    work = Path(wish.config).absolute().parent if wish.config is not None else state_place(machine)
    logs = Path("/Library/Logs") if wish.whose is Whose.SYSTEM else machine.home / "Library/Logs"
    arguments = [str(machine.program), *(["--config", wish.config] if wish.config is not None else [])]
    job = {
        "Label": USER,
        "ProgramArguments": arguments,
        "WorkingDirectory": str(work),
        "EnvironmentVariables": {"PYTHONUNBUFFERED": "1"},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 5,
        "ExitTimeOut": STOP_S,
        "ProcessType": "Background",
        "Umask": 0o077,
        "StandardErrorPath": str(logs / "schedd.log"),
    } | ({"UserName": wish.run_as} if wish.whose is Whose.SYSTEM else {})
    return plistlib.dumps(job).decode().replace("<plist", f"<!-- {MARK} -->\n<plist", 1)


def _domain(machine: Machine, whose: Whose) -> str:
    return "system" if whose is Whose.SYSTEM else f"gui/{machine.uid}"
