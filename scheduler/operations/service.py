"""schedd as a service of systemd or, on macOS, of launchd: install it, look at it, undo that.

The manager's file carries a mark and a record of what else was made, so that all of that can be removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scheduler.errors import ConfigError
from scheduler.operations import launchd, systemd
from scheduler.operations.service_manager import MARK, Machine, ServicePlan, ServiceStatus, Whose, Wish


def plan(machine: Machine, wish: Wish) -> ServicePlan:
    """What :func:`install` would do; it changes nothing. Raises ConfigError."""
    _check(machine, wish)
    unit = unit_path(machine, wish.whose)
    if unit.exists() and MARK not in unit.read_text(encoding="utf-8"):
        raise ConfigError(f"{unit} is not of schedctl's making: remove it, or change it by hand")
    return launchd.plan(machine, wish) if machine.darwin else systemd.plan(machine, wish)


def install(machine: Machine, wish: Wish) -> ServicePlan:
    """Install the service and start it; one of schedctl's making is brought up to date.

    A failure leaves nothing behind, but for a service that is installed and does not start. Raises ConfigError.
    """
    if not machine.darwin and not systemd.runs(machine):
        raise ConfigError("systemd does not run here, so nothing is installed; --dry-run prints the unit")
    if wish.whose is Whose.SYSTEM and machine.uid != 0:
        raise ConfigError("a service of the system is installed by root: use sudo, or --user")
    done = plan(machine, wish)
    was = {path: path.read_bytes() for path in done.files if path.exists()}
    if machine.darwin and was:
        launchd.stop(machine, wish.whose)
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
    made, told = systemd.made_with(unit), []
    if machine.darwin:
        launchd.stop(machine, whose)
    else:
        systemd.stop(machine, whose, unit)
    drop_ins = unit.parent / f"{unit.name}.d"
    ours = [file for file in drop_ins.glob("*.conf") if MARK in file.read_text(encoding="utf-8")]
    for path in [unit, *ours]:
        path.unlink(missing_ok=True)
        told.append(f"removed {path}")
    _remove_if_empty(drop_ins)
    if not machine.darwin:
        systemd.forget(machine, whose, unit)
    for name, digest in made.items():
        told += _remove_made(machine, name, digest)
    place = launchd.state_place(machine) if machine.darwin else systemd.state_place(machine, whose)
    told.append(f"the store and all that tasks have written stays: {place}, unless configured elsewhere")
    return told


def status(machine: Machine, whose: Whose) -> ServiceStatus | None:
    """How the service is; None if none is installed."""
    unit = unit_path(machine, whose)
    if not unit.exists():
        return None
    return launchd.status(machine, whose, unit) if machine.darwin else systemd.status(machine, whose, unit)


def installed(machine: Machine) -> list[Whose]:
    """Whose services are installed here."""
    return [whose for whose in Whose if unit_path(machine, whose).exists()]


def unit_path(machine: Machine, whose: Whose) -> Path:
    """The file that tells the service manager of schedd."""
    return launchd.unit_path(machine, whose) if machine.darwin else systemd.unit_path(machine, whose)


def _check(machine: Machine, wish: Wish) -> None:
    if not machine.program.exists():
        raise ConfigError(f"there is no {machine.program}: install schedd with pip, then run its schedctl")
    if not wish.run_as.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"--run-as {wish.run_as!r} is not a user's name")
    for _, file in wish.credentials:
        if not Path(file).is_file():
            raise ConfigError(f"--credential: there is no file {file}")
        if Path(file).stat().st_mode & 0o077:
            raise ConfigError(f"--credential: others may read {file}: chmod 600 {file}")


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


def _remove_made(machine: Machine, name: str, digest: str) -> list[str]:
    if name.startswith("user "):
        user = name.removeprefix("user ")
        status, text = machine.run(["userdel", user])
        return [f"removed the user {user}" if status == 0 else f"the user {user} stays: {text}"]
    path = machine.place(name)
    if not path.exists():
        return []
    if systemd.digest_of(path.read_text(encoding="utf-8", errors="replace")) != digest:
        return [f"{path} stays, since it was changed: remove it yourself"]
    path.unlink()
    _remove_if_empty(path.parent)
    return [f"removed {path}"]


def _remove_if_empty(place: Path) -> None:
    with suppress(OSError):
        place.rmdir()
