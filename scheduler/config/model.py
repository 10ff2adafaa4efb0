"""Config: the settings of a TOML file, credentials and the environment, checked and merged.

A later source wins: defaults, the file, $CREDENTIALS_DIRECTORY, the environment. See docs/reference/configuration.md.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from scheduler.config.sources import Duration, Reader, format_duration, is_duration
from scheduler.config.validation import check
from scheduler.model.redact import redact, shown_url

PLACES = ("config.toml", "/etc/schedd/config.toml")
_SECRET = frozenset({"store.url", "mail.password"})  # never echoed in an error, shown without its password elsewhere

Count = Annotated[int, Meta(ge=0)]
LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]


def cores() -> int:
    """The number of cores that this process may use."""
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
    """``[worker]``: which tasks this daemon claims, and how long its lease lasts."""

    queues: tuple[str, ...] = ("*",)
    lease: Annotated[Duration, Meta(gt=0)] = 30.0
    drain: Duration = 30.0
    processes: Annotated[int, Meta(ge=1)] = msgspec.field(default_factory=cores)
    grace: Annotated[Duration, Meta(gt=0)] = 5.0
    recycle_tasks: Count = 0
    recycle_memory: str = "0"
    max_concurrent_tasks: Count = 0
    default_timeout: Duration = 0.0
    restart_when_hung: bool = False


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
    misfire_grace: Annotated[Duration, Meta(ge=1)] = 60.0


class Log(_Section, frozen=True):
    """``[log]``: what the daemon writes on stderr."""

    format: LogFormat = "auto"
    level: LogLevel = "info"
    attempts: Literal["notable", "all"] = "notable"


class Retention(_Section, frozen=True):
    """``[retention]``: how long ended tasks, outcomes of removed tasks, and events are kept.

    ``results`` and ``keys``: how long a success keeps its result and its key, unless its kind or its call says so."""

    success: Duration = 24 * 3600.0
    failed: Duration = 30 * 86400.0
    outcomes: Duration = 90 * 86400.0
    events: Duration = 30 * 86400.0
    results: Duration = 24 * 3600.0
    keys: Duration = 24 * 3600.0


class Command(_Section, frozen=True):
    """``[command]``: whether tasks may run commands, and in which directories (none named: in any)."""

    enabled: bool = False
    roots: tuple[str, ...] = ()


class Files(_Section, frozen=True):
    """``[files]``: where the built-in file tasks keep blobs, and the directories they may take files from."""

    blobs: str | None = None
    roots: tuple[str, ...] = ()
    max_pixels: Annotated[int, Meta(ge=1)] = 80_000_000


class Http(_Section, frozen=True):
    """``[http]``: which addresses besides public ones requests may go to, and which secrets may go where."""

    allow: tuple[str, ...] = ()
    ca: str | None = None
    secrets: tuple[str, ...] = ()
    secrets_dir: str | None = None


class Mail(_Section, frozen=True):
    """``[mail]``: the server that takes outgoing mail. ``port`` 0: 587 for starttls, 465 for tls, 25 for none."""

    host: str | None = None
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: str | None = None
    password: str | None = None
    sender: str | None = None
    ca: str | None = None


class Actions(_Section, frozen=True):
    """``[actions]``: signed actions between servers."""

    name: str | None = None
    key_file: str | None = None
    directory: str | None = None
    audience: tuple[str, ...] = ()
    require_audience: bool = True
    inbox: str = "https://cl-o.{recipient}/api/inbox"
    keys: str = "https://cl-o.{issuer}/api/me/keys"
    files: str = "https://cl-o.{issuer}/api/files/{file_id}"
    keep_keys: Duration = 3600.0
    max_file: Annotated[int, Meta(ge=1)] = 32 * 1024 * 1024
    following: tuple[str, ...] = ()
    connected: tuple[str, ...] = ()
    relation: str | None = None


class Cleanup(_Section, frozen=True):
    """``[cleanup]``: directories in which old files may be removed."""

    roots: tuple[str, ...] = ()


class Backup(_Section, frozen=True):
    """``[backup]``: directories that may be backed up, and to which."""

    sources: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ()


class Functions(_Section, frozen=True):
    """``[batch]``: functions that a BatchTask may call, as ``module:function``."""

    functions: tuple[str, ...] = ()


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
    http: Http = Http()
    mail: Mail = Mail()
    actions: Actions = Actions()
    cleanup: Cleanup = Cleanup()
    backup: Backup = Backup()
    batch: Functions = Functions()
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


def find(path: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The configuration file: the one named, else $SCHEDD_CONFIG, else the first of PLACES, else None."""
    named = path or environ.get("SCHEDD_CONFIG")
    if named:
        return named
    return next((place for place in PLACES if os.path.lexists(place)), None)


def load(path: str | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """Read and check the configuration. ``path``: the value of ``--config``.

    Raises ConfigError for a setting that is unreadable, unknown or not valid; it names the setting and its source.
    """
    file = find(path, environ)
    reader = Reader(KINDS, _SECRET)
    layers = [reader.file(file)] if file is not None else []
    layers += [reader.credentials(environ.get("CREDENTIALS_DIRECTORY")), reader.environment(environ)]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for name, (value, source) in layer.items():
            values[name], sources[name] = value, source
    config = _build(values, None if file is None else os.path.abspath(file), sources)
    check(config)
    return config


def _build(values: dict[str, Any], file: str | None, sources: dict[str, str]) -> Config:
    """Make the Config of the merged values; other settings keep their defaults."""

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
        config = msgspec.structs.replace(config, store=msgspec.structs.replace(config.store, auto_migrate=on_sqlite))
    return config


def describe(config: Config) -> list[Setting]:
    """The settings in effect, each with where it comes from; passwords masked. For ``config check``."""
    found = []
    for name, kind in KINDS.items():
        value = config.get(name)
        if name == "mail.password" and value is not None:
            value = "***"
        elif isinstance(value, str):
            value = shown_url(value) if "://" in value else redact(value)
        elif isinstance(value, tuple):
            value = tuple(map(redact, value))
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


def scheduler_options(config: Config) -> dict[str, Any]:
    """The keyword arguments of a Scheduler with this configuration, besides its url and ``state``."""
    pools = {name: getattr(config.pools, name) for name in ("high", "medium", "low")}
    return {
        "auto_migrate": config.store.auto_migrate,
        "queues": config.worker.queues,
        "pools": {name: (pool.slots, pool.async_slots) for name, pool in pools.items()},
        "lease": config.worker.lease,
        "drain": config.worker.drain,
        "processes": config.worker.processes,
        "process_grace": config.worker.grace,
        "recycle_tasks": config.worker.recycle_tasks,
        "recycle_memory": config.worker.recycle_memory,
        "child_state": config.tasks.state,
        "max_concurrent_tasks": config.worker.max_concurrent_tasks,
        "default_timeout": config.worker.default_timeout,
        "timezone": config.schedules.timezone,
        "misfire_grace": config.schedules.misfire_grace,
        "retention": msgspec.structs.asdict(config.retention),
        "log_attempts": config.log.attempts,
        "settings": task_settings(config),
    }


def task_settings(config: Config, environ: Mapping[str, str] = os.environ) -> dict[str, dict[str, Any]]:
    """``ctx.settings`` of the built-in tasks: their sections, with absolute paths, and the store's place."""
    made = {name: msgspec.structs.asdict(getattr(config, name)) for name in _FOR_TASKS}
    for section, name in _PATHS:
        value = made[section][name]
        if isinstance(value, tuple):
            made[section][name] = [_absolute(path) for path in value]
        elif value is not None:
            made[section][name] = _absolute(value)
    for section, name in _LISTS:
        made[section][name] = list(made[section][name])
    made["http"]["secrets_dir"] = made["http"]["secrets_dir"] or environ.get("CREDENTIALS_DIRECTORY")
    if made["actions"]["key_file"] is None and environ.get("CREDENTIALS_DIRECTORY"):
        made["actions"]["key_file"] = os.path.join(environ["CREDENTIALS_DIRECTORY"], "signing-key.pem")
    made["store"] = {"sqlite": _sqlite_path(config.store.url)}
    return made


_FOR_TASKS = ("command", "files", "http", "mail", "actions", "cleanup", "backup", "batch")
_LISTS = (
    ("http", "allow"),
    ("http", "secrets"),
    ("actions", "audience"),
    ("actions", "following"),
    ("actions", "connected"),
    ("batch", "functions"),
)
_PATHS = (
    ("command", "roots"),
    ("files", "roots"),
    ("files", "blobs"),
    ("http", "ca"),
    ("http", "secrets_dir"),
    ("mail", "ca"),
    ("actions", "key_file"),
    ("actions", "directory"),
    ("cleanup", "roots"),
    ("backup", "sources"),
    ("backup", "destinations"),
)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _sqlite_path(url: str) -> str | None:
    """The file that a SQLite URL names; None for another database."""
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] != "sqlite" or not rest.startswith("/"):
        return None
    return os.path.abspath(unquote(rest[1:].partition("?")[0]))
