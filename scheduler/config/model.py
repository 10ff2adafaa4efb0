"""Config: every setting with its type and its default, as structs. See docs/reference/configuration.md."""

from __future__ import annotations

import os
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from scheduler.config.alerts import Alerts, AlertSink
from scheduler.config.executors import Executor
from scheduler.config.gateway import Gateway
from scheduler.config.messages import Door, Sink, Source, common_settings, is_secret_option
from scheduler.config.section import Section
from scheduler.config.sources import OPEN, Duration, format_duration, is_duration
from scheduler.model.defaults import DRAIN, LEASE, MISFIRE_GRACE, POOL_SLOTS, PROCESS_GRACE, RETENTION, UNMOVED_AFTER
from scheduler.model.redact import redact, shown_url

Count = Annotated[int, Meta(ge=0)]
LogFormat = Literal["auto", "console", "json"]
LogAttempts = Literal["auto", "notable", "all"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Store(Section, frozen=True):
    """``[store]``: where tasks are kept. ``auto_migrate`` None: yes on SQLite, no on PostgreSQL. ``notify``: wake
    idle workers of other processes at once."""

    url: str = "sqlite:///schedd.db"
    auto_migrate: bool | None = None
    notify: bool = True


class Tasks(Section, frozen=True):
    """``[tasks]``: which task types this daemon serves."""

    modules: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    state: str | None = None
    builtin: tuple[str, ...] = ()


class Worker(Section, frozen=True):
    """``[worker]``: which tasks this daemon claims, and how long its lease lasts."""

    queues: tuple[str, ...] = ("*",)
    lease: Annotated[Duration, Meta(gt=0)] = LEASE
    drain: Duration = DRAIN
    processes: Annotated[int, Meta(ge=1)] = msgspec.field(default_factory=cores)
    grace: Annotated[Duration, Meta(gt=0)] = PROCESS_GRACE
    recycle_tasks: Count = 0
    recycle_memory: str = "0"
    max_concurrent_tasks: Count = 0
    default_timeout: Duration = 0.0
    unmoved_after: Duration = UNMOVED_AFTER
    restart_when_hung: bool = False


class Pool(Section, frozen=True, kw_only=False):
    """``[pools.*]``: how many attempts of one priority run at a time, in threads and as asyncio tasks."""

    slots: Count = 0
    async_slots: Count = 0


class Pools(Section, frozen=True):
    """``[pools]``: the three priorities."""

    high: Pool = Pool(*POOL_SLOTS["high"])
    medium: Pool = Pool(*POOL_SLOTS["medium"])
    low: Pool = Pool(*POOL_SLOTS["low"])


class Schedules(Section, frozen=True):
    """``[schedules]``: how recurrences are read."""

    timezone: str = "UTC"
    misfire_grace: Annotated[Duration, Meta(ge=1)] = MISFIRE_GRACE


class Log(Section, frozen=True):
    """``[log]``: what the daemon writes on stderr. ``attempts`` auto: all on a terminal, else notable."""

    format: LogFormat = "auto"
    level: LogLevel = "info"
    attempts: LogAttempts = "auto"


class Retention(Section, frozen=True):
    """``[retention]``: how long ended tasks, outcomes of removed tasks, events, and the audit are kept.

    ``results`` and ``keys``: how long a success keeps its result and its key, unless its kind or its call says so.
    ``dead``, ``cancelled``, ``skipped``: None: as ``failed``."""

    success: Duration = RETENTION["success"]
    failed: Duration = RETENTION["failed"]
    outcomes: Duration = RETENTION["outcomes"]
    events: Duration = RETENTION["events"]
    results: Duration = RETENTION["results"]
    keys: Duration = RETENTION["keys"]
    stats: Duration = RETENTION["stats"]
    audit: Duration = RETENTION["audit"]
    dead: Duration | None = None
    cancelled: Duration | None = None
    skipped: Duration | None = None


class Metrics(Section, frozen=True):
    """``[metrics]``: ``rollups``: keep how many attempts ended how, and how long they ran and waited. ``listen``: where
    metrics and health checks are served, ``HOST:PORT`` or ``unix:PATH``; None: nowhere."""

    rollups: bool = True
    listen: str | None = None


class Console(Section, frozen=True):
    """``[console]``: the pages. ``listen``: the daemon serves them there, in a process of its own; None: it does not.

    ``auth`` None: a link for one use on loopback addresses, the peer's user on a Unix socket. ``users``: the file of
    those who have a token or a password. ``groups`` (of a proxy's users) and ``roles``: ``"group = role"``,
    ``"name = verb, verb"``. ``commands``: whether tasks that run commands may be submitted and patched. ``trace_url``:
    of a trace, with ``{trace_id}`` in it.
    """

    listen: str | None = None
    auth: Literal["token", "basic", "proxy", "local"] | None = None
    users: str | None = None
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    proxy_secret: str | None = None
    hosts: tuple[str, ...] = ()
    prefix: str | None = None
    frame_ancestors: tuple[str, ...] = ()
    read_only: bool = False
    commands: bool = False
    label: str | None = None
    zone: str = "UTC"
    trace_url: str | None = None


class Otel(Section, frozen=True):
    """``[otel]``: traces and metrics for OpenTelemetry.

    ``endpoint`` None: as ``OTEL_EXPORTER_OTLP_ENDPOINT`` says. ``ratio``: which part of the attempts is traced whose
    tasks were sent outside of a trace. ``parent``: whether the span of an attempt begins a trace of its own, with a
    link to the sender's, or is a child of the sender's. ``slow``: longer attempts are always traced; 0: none for that.
    """

    enabled: bool = False
    endpoint: str | None = None
    ratio: Annotated[float, Meta(ge=0, le=1)] = 0.05
    parent: Literal["link", "producer"] = "link"
    service: str = "schedd"
    slow: Duration = 1.0
    settle: bool = False
    logs: bool = True
    metrics: bool = True


class Command(Section, frozen=True):
    """``[command]``: whether tasks may run commands, and in which directories (none named: in any)."""

    enabled: bool = False
    roots: tuple[str, ...] = ()


class Files(Section, frozen=True):
    """``[files]``: where the built-in file tasks keep blobs, and the directories they may take files from."""

    blobs: str | None = None
    roots: tuple[str, ...] = ()
    max_pixels: Annotated[int, Meta(ge=1)] = 80_000_000


class Http(Section, frozen=True):
    """``[http]``: which addresses besides public ones requests may go to, and which secrets may go where."""

    allow: tuple[str, ...] = ()
    ca: str | None = None
    secrets: tuple[str, ...] = ()
    secrets_dir: str | None = None


class Mail(Section, frozen=True):
    """``[mail]``: the server that takes outgoing mail. ``port`` 0: 587 for starttls, 465 for tls, 25 for none."""

    host: str | None = None
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: str | None = None
    password: str | None = None
    sender: str | None = None
    ca: str | None = None


class Actions(Section, frozen=True):
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


class Cleanup(Section, frozen=True):
    """``[cleanup]``: directories in which old files may be removed."""

    roots: tuple[str, ...] = ()


class Backup(Section, frozen=True):
    """``[backup]``: directories that may be backed up, and to which."""

    sources: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ()


class Functions(Section, frozen=True):
    """``[batch]``: functions that a BatchTask may call, as ``module:function``."""

    functions: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting. ``file`` is the file that was read, ``directory`` where relative paths count from, ``origins``
    where each setting comes from."""

    store: Store = Store()
    tasks: Tasks = Tasks()
    worker: Worker = msgspec.field(default_factory=Worker)
    pools: Pools = Pools()
    schedules: Schedules = Schedules()
    log: Log = Log()
    retention: Retention = Retention()
    metrics: Metrics = Metrics()
    console: Console = Console()
    alerts: Alerts = Alerts()
    otel: Otel = Otel()
    command: Command = Command()
    files: Files = Files()
    http: Http = Http()
    mail: Mail = Mail()
    actions: Actions = Actions()
    cleanup: Cleanup = Cleanup()
    backup: Backup = Backup()
    batch: Functions = Functions()
    door: Door = Door()
    sources: dict[str, Source] = {}
    sinks: dict[str, Sink] = {}
    executors: dict[str, Executor] = {}
    gateway: Gateway = Gateway()
    file: str | None = None
    directory: str = ""
    origins: dict[str, str] = {}

    def get(self, name: str) -> Any:
        """The value of a setting by its dotted name, such as ``pools.high.slots``."""
        value: Any = self
        for part in name.split("."):
            if isinstance(value, Source | Sink | Executor) and part in value.options:
                value = value.options
            value = value[part] if isinstance(value, dict) else getattr(value, part)
        return value


class Setting(msgspec.Struct, frozen=True):
    """One line of ``config check``: ``value`` fits JSON, ``text`` is as in TOML; neither shows a password."""

    name: str
    value: Any
    text: str
    source: str


def _kinds(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, kind in typing.get_type_hints(struct, include_extras=True).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _kinds(kind, f"{prefix}{name}.")
        elif prefix and typing.get_origin(kind) is not dict:
            yield prefix + name, kind


KINDS: Mapping[str, Any] = dict(_kinds(Config))
"""Every setting's dotted name and annotated type, in the order of the documentation."""

TABLES: Mapping[str, Mapping[str, Any]] = {
    "alerts.sinks": typing.get_type_hints(AlertSink, include_extras=True),
    "sources": common_settings(Source) | {OPEN: object},
    "sinks": common_settings(Sink) | {OPEN: object},
    "executors": common_settings(Executor) | {OPEN: object},
}
"""Sections whose entries a user names, each with the settings of an entry and their annotated types."""


def _all_kinds(config: Config) -> dict[str, Any]:
    """``KINDS``, and the settings of the entries that there are."""
    found = dict(KINDS)
    for table, kinds in TABLES.items():
        for entry, section in config.get(table).items():
            named = {name: kind for name, kind in kinds.items() if name != OPEN}
            named |= dict.fromkeys(getattr(section, "options", ()), object)
            found |= {f"{table}.{entry}.{name}": kind for name, kind in named.items()}
    return found


_SINK_SECRETS = frozenset(f"alerts.sinks.*.{name}" for name in ("url", "secret", "token"))
SECRETS = frozenset({"mail.password", "console.proxy_secret", "door.token", "gateway.secret"}) | _SINK_SECRETS
"""Settings whose values are never shown; ``*`` stands for an entry of a table."""


def _is_secret(name: str) -> bool:
    head, _, last = name.rpartition(".")
    table = head.rpartition(".")[0]
    return bool({name, f"{table}.*.{last}"} & SECRETS) or (OPEN in TABLES.get(table, ()) and is_secret_option(last))


def describe(config: Config) -> list[Setting]:
    """The settings in effect, each with where it comes from; passwords masked. For ``config check``."""
    found = []
    for name, kind in _all_kinds(config).items():
        value = config.get(name)
        if _is_secret(name) and value is not None:
            value = "***"
        elif isinstance(value, str):
            value = shown_url(value) if "://" in value else redact(value)
        elif isinstance(value, tuple):
            value = tuple(map(redact, value))
        text = format_duration(cast(float, value)) if is_duration(kind) and value is not None else value
        found.append(
            Setting(
                name,
                value,
                "" if text is None else msgspec.json.encode(text).decode(),
                config.origins.get(name, "default"),
            )
        )
    return found


def changed(old: Config, new: Config) -> list[str]:
    """The names of the settings that differ."""
    was, now = _all_kinds(old), _all_kinds(new)
    both = [name for name in was if name in now and old.get(name) != new.get(name)]
    return both + sorted(was.keys() ^ now.keys())
