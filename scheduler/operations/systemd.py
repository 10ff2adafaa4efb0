"""A service of systemd: ``systemd/schedd.service`` or ``schedd-user.service`` of the tree, with this installation's
program, configuration and user in it. Comments at its head record what else was made.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from scheduler.errors import ConfigError
from scheduler.operations.service_manager import MARK, USER, Machine, ServicePlan, ServiceStatus, Whose, Wish

STATE = "/var/lib/schedd"
CONFIG = "/etc/schedd/config.toml"
FIRST_CONFIG = """\
# Every setting: config.example.toml of schedd, or `schedctl config show`.
[store]
url = "sqlite:///schedd.db"
"""
RECORD = "# made: "  # before what else was made, at the head of a unit
# Places that the system's unit hides from the daemon (ProtectHome=, PrivateTmp=).
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
SHOWN = ("ActiveState", "SubState", "MainPID", "UnitFileState", "ActiveEnterTimestamp", "NRestarts")


def plan(machine: Machine, wish: Wish) -> ServicePlan:
    """The parts of the service: a user, a first configuration, the unit with its drop-ins. Raises ConfigError."""
    _check(machine, wish)
    unit = unit_path(machine, wish.whose)
    files: dict[Path, str] = {}
    before: list[list[str]] = []
    made = made_with(unit)
    config = wish.config
    if wish.whose is Whose.SYSTEM:
        if not machine.has_user(wish.run_as):
            shell = "/usr/sbin/nologin"
            before.append(["useradd", "--system", "--home-dir", STATE, "--shell", shell, wish.run_as])
            made[f"user {wish.run_as}"] = ""
        if config is None:
            config = CONFIG
            if not machine.place(CONFIG).exists():
                files[machine.place(CONFIG)] = FIRST_CONFIG
                made[CONFIG] = digest_of(FIRST_CONFIG)
    for name in wish.drop_ins:
        text = template(f"{_template(wish.whose)}.d/{name}.conf")
        files[unit.parent / f"{unit.name}.d" / f"{name}.conf"] = f"# {MARK}\n{text}"
    files[unit] = render(machine, wish, config, made)
    systemctl = _systemctl(wish.whose)
    after = [[*systemctl, "daemon-reload"], [*systemctl, "enable", unit.name]]
    return ServicePlan(files, before, after, [*systemctl, "restart", unit.name])


def unit_path(machine: Machine, whose: Whose) -> Path:
    """The unit."""
    if whose is Whose.SYSTEM:
        return machine.place(f"/etc/systemd/system/{USER}.service")
    return machine.home / f".config/systemd/user/{USER}.service"


def runs(machine: Machine) -> bool:
    """Whether systemd runs here."""
    return machine.place("/run/systemd/system").is_dir()


def stop(machine: Machine, whose: Whose, unit: Path) -> None:
    """End the service, and start it no more."""
    machine.run([*_systemctl(whose), "disable", "--now", unit.name])


def forget(machine: Machine, whose: Whose, unit: Path) -> None:
    """Tell systemd of a unit that was removed."""
    machine.run([*_systemctl(whose), "daemon-reload"])
    machine.run([*_systemctl(whose), "reset-failed", unit.name])


def state_place(machine: Machine, whose: Whose) -> Path:
    """Where the store is, unless configured elsewhere."""
    return Path(STATE) if whose is Whose.SYSTEM else machine.home / ".local/state/schedd"


def status(machine: Machine, whose: Whose, unit: Path) -> ServiceStatus:
    """How an installed service is."""
    _, text = machine.run([*_systemctl(whose), "show", unit.name, f"--property={','.join(SHOWN)}"])
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    active = found.get("ActiveState", "unknown")
    state = f"{active} ({found['SubState']})" if found.get("SubState") else active
    main, restarts = found.get("MainPID", "0"), found.get("NRestarts", "")
    return ServiceStatus(
        whose,
        str(unit),
        state,
        int(main) if main.isdigit() and main != "0" else None,
        found.get("UnitFileState") or "unknown",
        found.get("ActiveEnterTimestamp") or None,
        int(restarts) if restarts.isdigit() else None,
        active == "active",
    )


def render(machine: Machine, wish: Wish, config: str | None, made: Mapping[str, str]) -> str:
    """The unit of this installation. ``made``: what else was made for it, each with its digest or ""."""
    command = _quoted(machine.program) + (f" --config {_quoted(config)}" if config is not None else "")
    values = {"ExecStart": command}
    if wish.whose is Whose.SYSTEM:
        values |= {"User": wish.run_as, "Group": wish.run_as}
    elif config is not None:  # the store is beside the configuration, as for `schedd` at a shell
        values["WorkingDirectory"] = _plain(os.path.dirname(os.path.abspath(config)))
    lines = []
    for line in template(_template(wish.whose)).splitlines():
        name = line.partition("=")[0]
        lines.append(f"{name}={values.pop(name)}" if name in values else line)
        if name == "Environment":
            lines += [f"LoadCredential={setting}:{_plain(file)}" for setting, file in wish.credentials]
    assert not values, f"the unit has no {', '.join(values)}"
    head = [f"# {MARK}", *(f"{RECORD}{name} {digest}".rstrip() for name, digest in made.items())]
    return "\n".join([*head, *lines]) + "\n"


def template(name: str) -> str:
    """A file of ``systemd/``, from the checkout or where an installation has it."""
    checkout = Path(__file__).parents[2] / "systemd" / name
    if checkout.is_file():
        return checkout.read_text(encoding="utf-8")
    for file in importlib.metadata.files("schedd") or ():
        if str(file).endswith(f"doc/schedd/systemd/{name}"):
            return Path(str(file.locate())).read_text(encoding="utf-8")
    raise ConfigError(f"this installation of schedd has no {name}: install schedd again")


def made_with(unit: Path) -> dict[str, str]:
    """What else was made for a unit: name and digest."""
    if not unit.exists():
        return {}
    return dict(_records(unit.read_text(encoding="utf-8")))


def digest_of(text: str) -> str:
    """By which a file that has changed since is known."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check(machine: Machine, wish: Wish) -> None:
    for name in wish.drop_ins:
        if not _has_template(f"{_template(wish.whose)}.d/{name}.conf"):
            raise ConfigError(f"a service of the {wish.whose} has no drop-in {name}")
    if wish.whose is Whose.SYSTEM:
        hidden_places = tuple(f"{machine.place(place)}/" for place in HIDDEN)
        looked_at: dict[str, str | Path | None] = {"the program": machine.program, "the configuration": wish.config}
        for what, path in looked_at.items():
            hidden = path is not None and os.path.realpath(path).startswith(hidden_places)
            if hidden:
                raise ConfigError(
                    f"{what}, {path}, lies where a service of the system sees nothing: install schedd below /opt, "
                    "have the configuration in /etc/schedd, or use --user"
                )


def _has_template(name: str) -> bool:
    with suppress(ConfigError):
        return bool(template(name))
    return False


def _template(whose: Whose) -> str:
    return "schedd.service" if whose is Whose.SYSTEM else "schedd-user.service"


def _systemctl(whose: Whose) -> list[str]:
    return ["systemctl"] if whose is Whose.SYSTEM else ["systemctl", "--user"]


def _records(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line.startswith(RECORD):
            made = line.removeprefix(RECORD)
            if made.startswith("user "):
                yield made, ""
            else:
                name, _, digest = made.rpartition(" ")
                yield name, digest


def _plain(path: str | Path) -> str:
    """A path as a unit has it where nothing is split. Raises ConfigError."""
    if any(ord(char) < 32 for char in str(path)):
        raise ConfigError(f"{str(path)!r} cannot be named in a unit")
    return str(path).replace("%", "%%")


def _quoted(path: str | Path) -> str:
    """A path as a word of ``ExecStart=``."""
    text = _plain(path).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return text if text.replace("/", "").replace(".", "").replace("-", "").replace("_", "").isalnum() else f'"{text}"'
