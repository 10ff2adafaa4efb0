"""schedd as a service of systemd or, on macOS, of launchd: install it, look at it, undo that.

The unit is ``systemd/schedd.service`` or ``schedd-user.service`` of the tree, with this installation's program,
configuration and user in it. Comments at its head record what else was made, so that all of that can be removed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import plistlib
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from scheduler.errors import ConfigError

MARK = "Made by schedctl service install, and removed by schedctl service uninstall."
RECORD = "# made: "  # before what else was made, at the head of a unit
USER = "schedd"
STATE = "/var/lib/schedd"
CONFIG = "/etc/schedd/config.toml"
FIRST_CONFIG = """\
# Every setting: config.example.toml of schedd, or `schedctl config show`.
[store]
url = "sqlite:///schedd.db"
"""
# Places that the system's unit hides from the daemon (ProtectHome=, PrivateTmp=).
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
DROP_INS = ("delegate", "no-namespaces")
SHOWN = ("ActiveState", "SubState", "MainPID", "UnitFileState", "ActiveEnterTimestamp", "NRestarts")
LAUNCHD_STOP = 60  # seconds, as TimeoutStopSec= of the unit

_LONGEST_S = 120  # that a command of the service manager may take: a stop waits for the daemon to drain


class Whose(StrEnum):
    """Whose service: the whole system's, or one user's."""

    SYSTEM = "system"
    USER = "user"


def _run(command: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    except OSError as error:
        return 127, f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} did not end within {_LONGEST_S} s"
    return done.returncode, (done.stdout or done.stderr).strip()


@dataclass(frozen=True)
class Machine:
    """The machine that gets the service. ``root``: where its files begin."""

    root: Path = Path("/")
    home: Path = field(default_factory=Path.home)
    uid: int = field(default_factory=os.getuid)
    darwin: bool = sys.platform == "darwin"
    run: Callable[[Sequence[str]], tuple[int, str]] = _run
    program: Path = Path(sysconfig.get_path("scripts")) / "schedd"

    def place(self, path: str | Path) -> Path:
        """Where a file of the machine lies."""
        return self.root / str(path).lstrip("/")

    def has_user(self, name: str) -> bool:
        """Whether it knows a user."""
        return self.run(["id", "-u", name])[0] == 0


class Wish(NamedTuple):
    """What to install. ``credentials``: setting and file of each; ``drop_ins``: names of :data:`DROP_INS`."""

    whose: Whose
    config: str | None = None
    run_as: str = USER
    credentials: tuple[tuple[str, str], ...] = ()
    drop_ins: tuple[str, ...] = ()


class Plan(NamedTuple):
    """Files with their contents, and the commands before and after they are written."""

    files: Mapping[Path, str]
    before: list[list[str]]
    after: list[list[str]]
    start: list[str]


class ServiceStatus(NamedTuple):
    """How an installed service is. ``state``: as its manager says, such as ``active (running)``."""

    whose: str
    unit: str
    state: str
    pid: int | None
    enabled: str
    since: str | None
    restarts: int | None
    active: bool


def plan(machine: Machine, wish: Wish) -> Plan:
    """What :func:`install` would do; it changes nothing. Raises ConfigError."""
    _check(machine, wish)
    unit = unit_path(machine, wish.whose)
    if unit.exists() and MARK not in unit.read_text(encoding="utf-8"):
        raise ConfigError(f"{unit} is not of schedctl's making: remove it, or change it by hand")
    if machine.darwin:
        return _launchd_plan(machine, wish, unit)
    files: dict[Path, str] = {}
    before: list[list[str]] = []
    made = _recorded(unit)
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
                made[CONFIG] = _digest(FIRST_CONFIG)
    for name in wish.drop_ins:
        text = template(f"{_template(wish.whose)}.d/{name}.conf")
        files[unit.parent / f"{unit.name}.d" / f"{name}.conf"] = f"# {MARK}\n{text}"
    files[unit] = render(machine, wish, config, made)
    systemctl = _systemctl(wish.whose)
    after = [[*systemctl, "daemon-reload"], [*systemctl, "enable", unit.name]]
    return Plan(files, before, after, [*systemctl, "restart", unit.name])


def install(machine: Machine, wish: Wish) -> Plan:
    """Install the service and start it; one of schedctl's making is brought up to date.

    A failure leaves nothing behind, but for a service that is installed and does not start. Raises ConfigError.
    """
    if not machine.darwin and not machine.place("/run/systemd/system").is_dir():
        raise ConfigError("systemd does not run here, so nothing is installed; --dry-run prints the unit")
    if wish.whose is Whose.SYSTEM and machine.uid != 0:
        raise ConfigError("a service of the system is installed by root: use sudo, or --user")
    done = plan(machine, wish)
    was = {path: path.read_bytes() for path in done.files if path.exists()}
    if machine.darwin and was:
        machine.run(["launchctl", "bootout", f"{_domain(machine, wish.whose)}/{USER}"])
    try:
        for command in done.before:
            _do(machine, command)
        for path, text in done.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o644)
        for command in done.after:
            _do(machine, command)
    except (ConfigError, OSError) as error:
        unit = unit_path(machine, wish.whose)
        if unit in was or not unit.exists():
            _put_back(done.files, was)
            for command in done.before:
                machine.run(["userdel", command[-1]])
        else:
            uninstall(machine, wish.whose)
        raise ConfigError(f"nothing is installed: {error}") from error
    status, text = machine.run(done.start)
    if status != 0:
        raise ConfigError(f"the service is installed, but does not start: {text or status}; {_where_to_look(wish)}")
    return done


def uninstall(machine: Machine, whose: Whose) -> list[str]:
    """Stop the service and remove all that :func:`install` made. The store stays. Returns what was done and what is
    left, in lines. Raises ConfigError."""
    unit = unit_path(machine, whose)
    if not unit.exists():
        raise ConfigError(f"there is no service at {unit}")
    if MARK not in unit.read_text(encoding="utf-8"):
        raise ConfigError(f"{unit} is not of schedctl's making: remove it by hand")
    if whose is Whose.SYSTEM and machine.uid != 0:
        raise ConfigError("a service of the system is removed by root: use sudo")
    made, told = _recorded(unit), []
    if machine.darwin:
        machine.run(["launchctl", "bootout", f"{_domain(machine, whose)}/{USER}"])
    else:
        machine.run([*_systemctl(whose), "disable", "--now", unit.name])
    drop_ins = unit.parent / f"{unit.name}.d"
    ours = [file for file in drop_ins.glob("*.conf") if MARK in file.read_text(encoding="utf-8")]
    for path in [unit, *ours]:
        path.unlink(missing_ok=True)
        told.append(f"removed {path}")
    _remove_if_empty(drop_ins)
    if not machine.darwin:
        machine.run([*_systemctl(whose), "daemon-reload"])
        machine.run([*_systemctl(whose), "reset-failed", unit.name])
    for name, digest in made.items():
        told += _remove_made(machine, name, digest)
    told.append(
        f"the store and all that tasks have written stays: {_state(machine, whose)}, unless configured elsewhere"
    )
    return told


def status(machine: Machine, whose: Whose) -> ServiceStatus | None:
    """How the service is; None if none is installed."""
    unit = unit_path(machine, whose)
    if not unit.exists():
        return None
    if machine.darwin:
        code, text = machine.run(["launchctl", "print", f"{_domain(machine, whose)}/{USER}"])
        found = dict(line.strip().split(" = ", 1) for line in text.splitlines() if " = " in line)
        state = found.get("state", "not loaded") if code == 0 else "not loaded"
        pid = int(found["pid"]) if found.get("pid", "").isdigit() else None
        return ServiceStatus(whose, str(unit), state, pid, "yes", None, None, state == "running")
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


def installed(machine: Machine) -> list[Whose]:
    """Whose services are installed here."""
    return [whose for whose in Whose if unit_path(machine, whose).exists()]


def unit_path(machine: Machine, whose: Whose) -> Path:
    """The file that tells the service manager of schedd."""
    if machine.darwin:
        of_system, of_user, ending = "/Library/LaunchDaemons", "Library/LaunchAgents", "plist"
    else:
        of_system, of_user, ending = "/etc/systemd/system", ".config/systemd/user", "service"
    base = machine.place(of_system) if whose is Whose.SYSTEM else machine.home / of_user
    return base / f"{USER}.{ending}"


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


def launchd(machine: Machine, wish: Wish) -> str:
    """The file for launchd."""
    work = Path(wish.config).absolute().parent if wish.config is not None else _state(machine, wish.whose)
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
        "ExitTimeOut": LAUNCHD_STOP,
        "ProcessType": "Background",
        "Umask": 0o077,
        "StandardErrorPath": str(logs / "schedd.log"),
    } | ({"UserName": wish.run_as} if wish.whose is Whose.SYSTEM else {})
    return plistlib.dumps(job).decode().replace("<plist", f"<!-- {MARK} -->\n<plist", 1)


def _launchd_plan(machine: Machine, wish: Wish, unit: Path) -> Plan:
    if wish.credentials or wish.drop_ins:
        raise ConfigError("launchd hands over no credentials and has no drop-ins: leave these options out")
    if wish.whose is Whose.SYSTEM and not machine.has_user(wish.run_as):
        raise ConfigError(f"there is no user {wish.run_as}: name one with --run-as")
    domain = _domain(machine, wish.whose)
    return Plan({unit: launchd(machine, wish)}, [], [], ["launchctl", "bootstrap", domain, str(unit)])


def _check(machine: Machine, wish: Wish) -> None:
    if not machine.program.exists():
        raise ConfigError(f"there is no {machine.program}: install schedd with pip, then run its schedctl")
    if not wish.run_as.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"--run-as {wish.run_as!r} is not a user's name")
    for name in wish.drop_ins:
        if not machine.darwin and not _has_template(f"{_template(wish.whose)}.d/{name}.conf"):
            raise ConfigError(f"a service of the {wish.whose} has no drop-in {name}")
    for _, file in wish.credentials:
        if not Path(file).is_file():
            raise ConfigError(f"--credential: there is no file {file}")
        if Path(file).stat().st_mode & 0o077:
            raise ConfigError(f"--credential: others may read {file}: chmod 600 {file}")
    if wish.whose is Whose.SYSTEM and not machine.darwin:
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


def _domain(machine: Machine, whose: Whose) -> str:
    return "system" if whose is Whose.SYSTEM else f"gui/{machine.uid}"


def _state(machine: Machine, whose: Whose) -> Path:
    if machine.darwin:
        return machine.home / "Library/Application Support/schedd"
    return Path(STATE) if whose is Whose.SYSTEM else machine.home / ".local/state/schedd"


def _where_to_look(wish: Wish) -> str:
    of = "-u schedd" if wish.whose is Whose.SYSTEM else "--user -u schedd"
    return f"`journalctl {of}` says why"


def _do(machine: Machine, command: Sequence[str]) -> None:
    status, text = machine.run(command)
    if status != 0:
        raise ConfigError(f"{' '.join(command)}: {text or f'status {status}'}")


def _put_back(files: Mapping[Path, str], was: Mapping[Path, bytes]) -> None:
    for path in files:
        if path in was:
            path.write_bytes(was[path])
        elif path.exists():
            path.unlink()
            _remove_if_empty(path.parent)


def _recorded(unit: Path) -> dict[str, str]:
    """What was made for a unit: name and digest."""
    if not unit.exists():
        return {}
    return dict(_records(unit.read_text(encoding="utf-8")))


def _records(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line.startswith(RECORD):
            made = line.removeprefix(RECORD)
            if made.startswith("user "):
                yield made, ""
            else:
                name, _, digest = made.rpartition(" ")
                yield name, digest


def _remove_made(machine: Machine, name: str, digest: str) -> list[str]:
    if name.startswith("user "):
        user = name.removeprefix("user ")
        status, text = machine.run(["userdel", user])
        return [f"removed the user {user}" if status == 0 else f"the user {user} stays: {text}"]
    path = machine.place(name)
    if not path.exists():
        return []
    if _digest(path.read_text(encoding="utf-8", errors="replace")) != digest:
        return [f"{path} stays, since it was changed: remove it yourself"]
    path.unlink()
    _remove_if_empty(path.parent)
    return [f"removed {path}"]


def _remove_if_empty(place: Path) -> None:
    with suppress(OSError):
        place.rmdir()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(path: str | Path) -> str:
    """A path as a unit has it where nothing is split. Raises ConfigError."""
    if any(ord(char) < 32 for char in str(path)):
        raise ConfigError(f"{str(path)!r} cannot be named in a unit")
    return str(path).replace("%", "%%")


def _quoted(path: str | Path) -> str:
    """A path as a word of ``ExecStart=``."""
    text = _plain(path).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return text if text.replace("/", "").replace(".", "").replace("-", "").replace("_", "").isalnum() else f'"{text}"'
