"""The configuration: a TOML file, credentials and the environment, checked and merged into one Config.

A later source wins: defaults, the file, $CREDENTIALS_DIRECTORY, the environment. See docs/configuration.md.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from scheduler.errors import ConfigError
from scheduler.settings import Duration, Unfit, convert, format_duration, is_duration, mask, optional, shown

PREFIX = "SCHEDD_"
PLACES = ("config.toml", "/etc/schedd/config.toml")
NOT_SETTINGS = frozenset({"SCHEDD_CONFIG", "SCHEDD_DEBUG"})
_SECRET = frozenset({"store.url"})  # never echoed in an error, shown without its password elsewhere

Count = Annotated[int, Meta(ge=0)]
LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the sections."""


class Store(_Section, frozen=True):
    """``[store]``: where tasks are kept. ``auto_migrate`` None: yes on SQLite, no on PostgreSQL."""

    url: str = "sqlite:///schedd.db"
    auto_migrate: bool | None = None


class Tasks(_Section, frozen=True):
    """``[tasks]``: which task types this daemon serves."""

    modules: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    state: str | None = None
    builtin: tuple[str, ...] = ()


class Worker(_Section, frozen=True):
    """``[worker]``: what this daemon takes, and for how long it holds it."""

    queues: tuple[str, ...] = ("*",)
    lease: Annotated[Duration, Meta(gt=0)] = 30.0
    drain: Duration = 30.0
    processes: Annotated[int, Meta(ge=1)] = msgspec.field(default_factory=cores)
    max_concurrent_tasks: Count = 0


class Pool(_Section, frozen=True):
    """``[pools.*]``: how many attempts of one level run at a time, in threads and as asyncio tasks."""

    slots: Count = 0
    async_slots: Count = 0


class Pools(_Section, frozen=True):
    """``[pools]``: the three levels."""

    high: Pool = Pool(slots=2, async_slots=20)
    medium: Pool = Pool(slots=8, async_slots=100)
    low: Pool = Pool(slots=4, async_slots=50)


class Schedules(_Section, frozen=True):
    """``[schedules]``: how recurrences are read."""

    timezone: str = "UTC"
    misfire_grace: Duration = 60.0


class Log(_Section, frozen=True):
    """``[log]``: what the daemon writes on stderr."""

    format: LogFormat = "auto"
    level: LogLevel = "info"
    attempts: Literal["notable", "all"] = "notable"


class Retention(_Section, frozen=True):
    """``[retention]``: how long finished tasks are kept, and how long a removed one's outcome."""

    success: Duration = 24 * 3600.0
    failed: Duration = 30 * 86400.0
    outcomes: Duration = 90 * 86400.0


class Command(_Section, frozen=True):
    """``[command]``: whether tasks may run commands."""

    enabled: bool = False


class Files(_Section, frozen=True):
    """``[files]``: where the built-in file tasks keep blobs, and the directories they may take files from."""

    blobs: str = "blobs"
    roots: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting. ``file`` is the file that was read, ``sources`` says where each setting comes from."""

    store: Store = Store()
    tasks: Tasks = Tasks()
    worker: Worker = msgspec.field(default_factory=Worker)
    pools: Pools = Pools()
    schedules: Schedules = Schedules()
    log: Log = Log()
    retention: Retention = Retention()
    command: Command = Command()
    files: Files = Files()
    file: str | None = None
    sources: dict[str, str] = {}

    def get(self, name: str) -> Any:
        """The value of a setting by its dotted name, such as ``pools.high.slots``."""
        value: Any = self
        for part in name.split("."):
            value = getattr(value, part)
        return value


class Setting(msgspec.Struct, frozen=True):
    """One line of ``config check``: ``value`` fits JSON, ``text`` is as in TOML; neither shows a password."""

    name: str
    value: Any
    text: str
    source: str


def _kinds(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, kind in typing.get_type_hints(struct, include_extras=True).items():
        if isinstance(kind, type) and issubclass(kind, _Section):
            yield from _kinds(kind, f"{prefix}{name}.")
        elif prefix:
            yield prefix + name, kind


KINDS: Mapping[str, Any] = dict(_kinds(Config))
"""Every setting's dotted name and annotated type, in the order of the documentation."""

_SECTIONS = {name.rpartition(".")[0] for name in KINDS} | {"pools"}


def find(path: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The configuration file: the one named, else $SCHEDD_CONFIG, else the first of PLACES, else None."""
    named = path or environ.get("SCHEDD_CONFIG")
    if named:
        return named
    return next((place for place in PLACES if os.path.lexists(place)), None)


def load(path: str | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """Read and check the configuration. ``path``: what ``--config`` says.

    Raises ConfigError for what cannot be read, is unknown or does not fit, with the setting and its source.
    """
    file = find(path, environ)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    layers = [_from_file(file)] if file is not None else []
    layers += [_from_credentials(environ.get("CREDENTIALS_DIRECTORY")), _from_environment(environ)]
    for layer in layers:
        for name, (value, source) in layer.items():
            values[name], sources[name] = value, source
    config = _build(values, None if file is None else os.path.abspath(file), sources)
    _check(config)
    return config


def _from_file(file: str) -> dict[str, tuple[Any, str]]:
    try:
        tree = tomllib.loads(Path(file).read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {file}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None
    found = {}
    for name, value in _leaves(tree, file):
        found[name] = (_converted(name, value, f"in {file}", name), file)
    return found


def _leaves(tree: dict[str, Any], file: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a TOML document by dotted name. Raises ConfigError for one that does not exist."""
    for key, value in tree.items():
        name = prefix + key
        if name in KINDS:
            yield name, value
        elif name in _SECTIONS:
            if not isinstance(value, dict):
                raise ConfigError(f"{name} is a section: write [{name}] and its settings below it, in {file}")
            yield from _leaves(value, file, name + ".")
        else:
            while isinstance(value, dict) and value:  # a section that does not exist: name a setting in it
                key, value = next(iter(value.items()))
                name += "." + key
            raise ConfigError(f"unknown setting {name} in {file}{_hint(name, KINDS)}")


def _from_credentials(directory: str | None) -> dict[str, tuple[Any, str]]:
    """Files such as ``store.url``. Those that begin with none of our sections are left to the tasks."""
    if not directory:
        return {}
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return {}  # inherited from a service that has ended
    except OSError as error:
        raise ConfigError(
            f"cannot read the credentials in {directory}: {error.strerror}; "
            "if they are another service's, unset CREDENTIALS_DIRECTORY"
        ) from None
    found = {}
    for name in names:
        if name not in KINDS:
            if name.rpartition(".")[0] in _SECTIONS:
                raise ConfigError(f"unknown setting: credential {name} in {directory}{_hint(name, KINDS)}")
            continue
        where = os.path.join(directory, name)
        try:
            text = Path(where).read_bytes().decode().rstrip("\r\n")
        except OSError as error:
            raise ConfigError(f"cannot read the credential {where}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"the credential {where} is not UTF-8 text") from None
        found[name] = (
            _converted(name, text, f"in {where}", "credential " + name, secret=True),
            "credential " + name,
        )
    return found


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """``SCHEDD_SECTION__NAME``. Other variables may begin with SCHEDD_ too, as a container's links do."""
    known = {PREFIX + name.upper().replace(".", "__"): name for name in KINDS}
    single = {variable.replace("__", "_"): variable for variable in known}
    found: dict[str, tuple[Any, str]] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable in single:
            raise ConfigError(
                f"unknown setting {variable} in the environment; did you mean {single[variable]}?"
            )
        if variable not in known:
            if "__" in variable:
                raise ConfigError(f"unknown setting {variable} in the environment{_hint(variable, known)}")
            continue
        name = known[variable]
        found[name] = (_converted(name, text, "in the environment", variable), variable)
    return found


def _hint(name: str, names: Mapping[str, object]) -> str:
    """What was probably meant: the same name in another section, or else a close one."""
    last = name.rpartition(".")[2]
    close = [other for other in names if other.rpartition(".")[2] == last]
    close = close or difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f"; did you mean {' or '.join(close[:3])}?" if close else ""


def _converted(name: str, value: object, where: str, called: str, *, secret: bool = False) -> Any:
    """The checked value. Raises ConfigError with the name, the value unless secret, and what was expected."""
    text = called != name
    if text and value == "" and optional(KINDS[name]):
        return None
    try:
        return convert(KINDS[name], value, text=text)
    except Unfit as error:
        got = "what is there" if secret or name in _SECRET else shown(value)
        raise ConfigError(f"setting {called}: expected {error}, not {got}, {where}") from None


def _build(values: dict[str, Any], file: str | None, sources: dict[str, str]) -> Config:
    """The Config of the merged values; what is not among them keeps its default."""

    def section(struct: type[msgspec.Struct], default: Any, prefix: str) -> Any:
        changes = {}
        for name, kind in typing.get_type_hints(struct).items():
            if isinstance(kind, type) and issubclass(kind, _Section):
                changes[name] = section(kind, getattr(default, name), f"{prefix}{name}.")
            elif prefix + name in values:
                changes[name] = values[prefix + name]
        return msgspec.structs.replace(default, **changes)

    config: Config = msgspec.structs.replace(section(Config, Config(), ""), file=file, sources=sources)
    if config.store.auto_migrate is None:
        on_sqlite = config.store.url.partition(":")[0].partition("+")[0] == "sqlite"
        config = msgspec.structs.replace(
            config, store=msgspec.structs.replace(config.store, auto_migrate=on_sqlite)
        )
    return config


def _check(config: Config) -> None:
    """What one setting's type cannot say. Raises ConfigError."""

    def refuse(name: str, why: str) -> typing.NoReturn:
        raise ConfigError(f"setting {name} ({config.sources.get(name, 'default')}): {why}")

    scheme = re.match(r"([a-z][a-z0-9+]*)://", config.store.url)
    if scheme is None or scheme[1].partition("+")[0] not in ("sqlite", "postgresql"):
        refuse(
            "store.url", "not a database URL; use sqlite:///schedd.db or postgresql+psycopg://user@host/db"
        )
    if not config.worker.queues:
        refuse("worker.queues", 'no queue; use ["*"] for all')
    pools = (config.pools.high, config.pools.medium, config.pools.low)
    if not any(pool.slots or pool.async_slots for pool in pools):
        refuse("pools.high.slots", "no pool has a slot, so nothing would ever run")
    if config.tasks.state is not None and not re.fullmatch(r"[\w.]+:[\w.]+", config.tasks.state):
        refuse("tasks.state", f'expected "module:function", not {shown(config.tasks.state)}')
    if config.schedules.timezone != "UTC" and not _is_zone(config.schedules.timezone):
        refuse(
            "schedules.timezone",
            f"{shown(config.schedules.timezone)} is not a time zone such as Europe/Berlin",
        )


def _is_zone(name: str) -> bool:
    import zoneinfo  # only when a zone other than UTC is asked for

    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def describe(config: Config) -> list[Setting]:
    """The settings in effect, each with where it comes from; passwords masked. For ``config check``."""
    found = []
    for name, kind in KINDS.items():
        value = config.get(name)
        if isinstance(value, str):
            value = mask(value)
        text = format_duration(value) if is_duration(kind) else value
        found.append(
            Setting(
                name,
                value,
                "" if text is None else msgspec.json.encode(text).decode(),
                config.sources.get(name, "default"),
            )
        )
    return found


def changed(old: Config, new: Config) -> list[str]:
    """The names of the settings that differ."""
    return [name for name in KINDS if old.get(name) != new.get(name)]
