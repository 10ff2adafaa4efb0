"""Config: every setting with its type and its default, as structs. See docs/reference/configuration.md."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from scheduler.config.alerts import Alerts, AlertSink
from scheduler.config.executors import ExecutorSection, Gateway
from scheduler.config.messages import DoorSection, SinkSection, SourceSection, common_settings
from scheduler.config.sources import OPEN, Duration, Section, fields_of
from scheduler.model.defaults import DRAIN, LEASE, MISFIRE_GRACE, POOL_SLOTS, PROCESS_GRACE, RETENTION, UNMOVED_AFTER
from scheduler.system.processes import cpus

Count = Annotated[int, Meta(ge=0)]
LogFormat = Literal["auto", "console", "json"]
LogAttempts = Literal["auto", "notable", "all"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]


def cores() -> int:
    """The number of cores that this process may use."""
    return cpus()


class StoreSection(Section, frozen=True):
    """``[store]``: the database."""

    # The database: a SQLite file, or `postgresql+psycopg://user@host/database`. For several hosts see [high
    # availability](../guides/high-availability.md).
    url: str = "sqlite:///schedd.db"
    # Bring the database to the program's schema when a daemon or program begins to store or run. Default: on for
    # SQLite, off for PostgreSQL.
    auto_migrate: bool | None = None
    # Wake idle workers of other processes at once, by sockets beside a SQLite file or by `NOTIFY`. Without it each
    # looks once a second.
    notify: bool = True


class TasksSection(Section, frozen=True):
    """``[tasks]``: the task types of this daemon."""

    # Modules to import; see [Task modules](#task-modules).
    modules: tuple[str, ...] = ()
    # Directories in front of `sys.path`, in this order; `"."` is the current directory, which is not there otherwise.
    path: tuple[str, ...] = ()
    # `"module:function"`, called once in each process; its return value is `ctx.state`.
    state: str | None = None
    # Built-in types to register; `CommandTask` also comes with `command.enabled`.
    builtin: tuple[str, ...] = ()


class Worker(Section, frozen=True):
    """``[worker]``: the tasks that this daemon claims, and its lease."""

    # The queues that this daemon serves; `*` is all.
    queues: tuple[str, ...] = ("*",)
    # How long its claims hold without a sign of life.
    lease: Annotated[Duration, Meta(gt=0)] = LEASE
    # How long running tasks may take to finish after SIGTERM.
    drain: Duration = DRAIN
    # Child processes for tasks with `isolation="process"`; see [isolation](../guides/child-processes.md). Default:
    # the cores it may use.
    processes: Annotated[int, Meta(ge=1)] = msgspec.field(default_factory=cores)
    # How long a task in a child process has to end, from SIGTERM to SIGKILL.
    grace: Annotated[Duration, Meta(gt=0)] = PROCESS_GRACE
    # A child process is replaced after so many tasks; 0: never.
    recycle_tasks: Count = 0
    # A child process is replaced once it has more memory than this, such as `"512M"`; 0: never.
    recycle_memory: str = "0"
    # Attempts at a time over all pools; 0: as many as the pools allow. The highest priority that waits gets the next
    # place, but every fourth time a lower one, in turn.
    max_concurrent_tasks: Count = 0
    # How long an attempt of a task without a timeout of its own may take; 0: for ever.
    default_timeout: Duration = 0.0
    # After so long without a move, an attempt of a kind without timeout and `stall_after` is named as a problem;
    # nothing ends it. 0: never.
    unmoved_after: Duration = UNMOVED_AFTER
    # Which ready tasks of equal priority start first. `in-turn`: kinds in turn, the oldest task of each; `short-first`:
    # those of [graphs with little work](../guides/nightly-graphs.md#many-graphs-at-once-short-ones-first).
    graphs: Literal["in-turn", "short-first"] = "in-turn"
    # The queues for which `graphs` holds; `*` is all.
    graphs_in: tuple[str, ...] = ("*",)
    # The daemon ends with status 75, to be started again, once handlers that hang have taken every thread, or every
    # coroutine, of a pool; see [systemd](../guides/systemd.md#handlers-that-hang).
    restart_when_hung: bool = False


class Pool(Section, frozen=True, kw_only=False):
    """``[pools.*]``: how many attempts of one priority run at a time, in threads and as asyncio tasks."""

    # Attempts of this priority at a time in threads.
    slots: Count = 0
    # Attempts of this priority at a time as coroutines; they have as many threads for `asyncio.to_thread`
    # ([asynchronous handlers](../guides/async-handlers.md)).
    async_slots: Count = 0


class Pools(Section, frozen=True):
    """``[pools]``: the three priorities."""

    high: Pool = Pool(*POOL_SLOTS["high"])
    medium: Pool = Pool(*POOL_SLOTS["medium"])
    low: Pool = Pool(*POOL_SLOTS["low"])


class SchedulesSection(Section, frozen=True):
    """``[schedules]``: how recurrences are read."""

    # The zone of recurrences that name none.
    timezone: str = "UTC"
    # A fire time counts as missed once it is this late; at least a second.
    misfire_grace: Annotated[Duration, Meta(ge=1)] = MISFIRE_GRACE


class LogSection(Section, frozen=True):
    """``[log]``: the log of the daemon, on stderr."""

    # `console` or `json`; auto: console if stderr is a terminal.
    format: LogFormat = "auto"
    # `debug`, `info`, `warning`, `error` or `critical`.
    level: LogLevel = "info"
    # The ends of attempts that are lines at `info`. `notable`: those retried, dead or slower than a second; `all`;
    # auto: all if stderr is a terminal. A dead or failed task is an error, a retry a warning.
    attempts: LogAttempts = "auto"


class Retention(Section, frozen=True):
    """``[retention]``: how long ended tasks, outcomes of removed tasks, events, and the audit are kept."""

    # How long successes are kept; see [limits](limits.md#how-long-things-are-kept).
    success: Duration = RETENTION["success"]
    # How long other ended tasks are kept.
    failed: Duration = RETENTION["failed"]
    # How long the outcome of a removed task is remembered.
    outcomes: Duration = RETENTION["outcomes"]
    # How long an emitted event is kept; longer while a task waits for it.
    events: Duration = RETENTION["events"]
    # How long a success's result is kept, unless its kind has a `result_ttl`.
    results: Duration = RETENTION["results"]
    # How long a key stays taken after a success, unless its kind has a `key_retention` or its call a `retention`.
    keys: Duration = RETENTION["keys"]
    # How long the numbers of `schedctl stats` are kept: by the minute for 6 hours, by the hour for 14 days, then by
    # the day (UTC).
    stats: Duration = RETENTION["stats"]
    # How long changes and their authors are remembered; see [audit](../guides/audit.md).
    audit: Duration = RETENTION["audit"]
    # The same for dead letters. Default: as `failed`.
    dead: Duration | None = None
    # The same for cancelled tasks. Default: as `failed`.
    cancelled: Duration | None = None
    # The same for skipped tasks. Default: as `failed`.
    skipped: Duration | None = None


class MetricsSection(Section, frozen=True):
    """``[metrics]``: numbers of attempts, and their address."""

    # Count how attempts end, and how long they run and wait. Without it `stats` has no numbers, and a drain is up to
    # 2 % faster.
    rollups: bool = True
    # The address of `/metrics` for Prometheus and the health checks `/livez`, `/readyz`, `/startupz`:
    # `127.0.0.1:9464`, `[::1]:9464` or `unix:/run/schedd/metrics.sock`. It needs the extra `metrics`; see
    # [monitoring](../guides/monitoring.md).
    listen: str | None = None


class ConsoleSection(Section, frozen=True):
    """``[console]``: the pages."""

    # The address at which the daemon serves its pages, in a process of its own: `HOST:PORT` or `unix:PATH`; see [the
    # console](../guides/console.md).
    listen: str | None = None
    # `token`, `basic`, `proxy` or `local`; unset: a link for one use on loopback addresses, the peer's user on a Unix
    # socket.
    auth: Literal["token", "basic", "proxy", "local"] | None = None
    # The file of visitors with a token or a password. Default: a credential `console_users`.
    users: str | None = None
    # `"group = role"` for a proxy's users.
    groups: tuple[str, ...] = ()
    # `"name = verb, verb"`: further roles.
    roles: tuple[str, ...] = ()
    # Addresses from which X-Forwarded headers are believed.
    trusted_proxies: tuple[str, ...] = ()
    # A secret that must come with these headers.
    proxy_secret: str | None = None
    # Further names by which visitors may ask for it.
    hosts: tuple[str, ...] = ()
    # The path below which it is.
    prefix: str | None = None
    # Sites that may show it in a frame.
    frame_ancestors: tuple[str, ...] = ()
    # Visitors change nothing.
    read_only: bool = False
    # Tasks that run commands may be submitted and changed.
    commands: bool = False
    # The environment's name on each page.
    label: str | None = None
    # The zone of its times.
    zone: str = "UTC"
    # The address of a trace, with `{trace_id}` in it.
    trace_url: str | None = None


class ApiSection(Section, frozen=True):
    """``[api]``: the verbs of the console as JSON, for machines."""

    # Serve the [HTTP API](../guides/http-api.md) at `/api/v1` of the console's address. It needs `[console] auth`.
    enabled: bool = False


class Otel(Section, frozen=True):
    """``[otel]``: traces and metrics for OpenTelemetry."""

    # Trace tasks with OpenTelemetry, and export metrics. It needs the extra `otel`; see
    # [tracing](../guides/tracing.md).
    enabled: bool = False
    # The receiver of OTLP over HTTP, such as `http://127.0.0.1:4318`. Default: as `OTEL_EXPORTER_OTLP_ENDPOINT` says.
    endpoint: str | None = None
    # The share of attempts to trace whose tasks were sent outside of a trace; within one the sender decides.
    ratio: Annotated[float, Meta(ge=0, le=1)] = 0.05
    # `link`: an attempt's span begins a trace, linked to the sender's; `producer`: it is a child of the sender's.
    parent: Literal["link", "producer"] = "link"
    # The `service.name` of all that is exported.
    service: str = "schedd"
    # Longer attempts are always traced, as failed ones are; 0: none for that.
    slow: Duration = 1.0
    # A span for each commit that records how attempts ended.
    settle: bool = False
    # Put `trace_id` and `span_id` on the log lines of traced attempts.
    logs: bool = True
    # Export the worker's metrics, too.
    metrics: bool = True


class CommandSection(Section, frozen=True):
    """``[command]``: whether tasks may run commands, and in which directories (none named: in any)."""

    # Let tasks run commands.
    enabled: bool = False
    # Directories in which commands may run; none: anywhere.
    roots: tuple[str, ...] = ()


class Files(Section, frozen=True):
    """``[files]``: where the built-in file tasks keep blobs, and the directories they may take files from."""

    # The directory in which the built-in file tasks keep file contents.
    blobs: str | None = None
    # Directories from which they may take files.
    roots: tuple[str, ...] = ()
    # Larger pictures are refused.
    max_pixels: Annotated[int, Meta(ge=1)] = 80_000_000


class Http(Section, frozen=True):
    """``[http]``: which addresses besides public ones requests may go to, and which secrets may go where."""

    # Networks, addresses and hosts that requests may go to besides public ones.
    allow: tuple[str, ...] = ()
    # A file of certificates to trust. Default: the system's.
    ca: str | None = None
    # `name@host`: secrets that headers may contain as `${name}`, for this host, by `https://`. `name@http://host`:
    # unencrypted, too.
    secrets: tuple[str, ...] = ()
    # The directory of these secrets, a file each. Default: `$CREDENTIALS_DIRECTORY`.
    secrets_dir: str | None = None


class MailSection(Section, frozen=True):
    """``[mail]``: the server that takes outgoing mail."""

    # The server for outgoing mail.
    host: str | None = None
    # Its port; 0: 587 for starttls, 465 for tls, 25 for none.
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    # `starttls`, `tls` or `none`.
    tls: Literal["starttls", "tls", "none"] = "starttls"
    # The login there.
    user: str | None = None
    # Its password; better a credential than a line in the file.
    password: str | None = None
    # The sender of all mail.
    sender: str | None = None
    # A file of certificates to trust. Default: the system's.
    ca: str | None = None


class Actions(Section, frozen=True):
    """``[actions]``: signed actions between servers."""

    # The signer of actions.
    name: str | None = None
    # The key that signs them. Default: a credential `signing-key.pem`.
    key_file: str | None = None
    # The directory in which actions are stored.
    directory: str | None = None
    # Domains for actions that name no audience of their own.
    audience: tuple[str, ...] = ()
    # An action without an audience is neither made nor delivered nor taken.
    require_audience: bool = True
    # The address at which recipients take actions.
    inbox: str = "https://cl-o.{recipient}/api/inbox"
    # The address of an issuer's keys.
    keys: str = "https://cl-o.{issuer}/api/me/keys"
    # The address of an issuer's files.
    files: str = "https://cl-o.{issuer}/api/files/{file_id}"
    # How long keys are kept in memory.
    keep_keys: Duration = 3600.0
    # Bytes that a file of an action may have.
    max_file: Annotated[int, Meta(ge=1)] = 32 * 1024 * 1024
    # Issuers whose actions are taken, since this server follows them.
    following: tuple[str, ...] = ()
    # Issuers whose actions are taken, since they are connected.
    connected: tuple[str, ...] = ()
    # `module:function` of tenant and issuer that says so instead.
    relation: str | None = None


class Cleanup(Section, frozen=True):
    """``[cleanup]``: directories in which old files may be removed."""

    # Directories in which old files may be removed.
    roots: tuple[str, ...] = ()


class Backup(Section, frozen=True):
    """``[backup]``: directories that may be backed up, and to which."""

    # Directories that may be backed up.
    sources: tuple[str, ...] = ()
    # Directories in which backups may be kept.
    destinations: tuple[str, ...] = ()


class Functions(Section, frozen=True):
    """``[batch]``: functions that a BatchTask may call, as ``module:function``."""

    # Functions that a `BatchTask` may call, as `"module:function"`.
    functions: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting. ``file`` is the file that was read, ``directory`` where relative paths count from, ``origins``
    where each setting comes from."""

    store: StoreSection = StoreSection()
    tasks: TasksSection = TasksSection()
    worker: Worker = msgspec.field(default_factory=Worker)
    pools: Pools = Pools()
    schedules: SchedulesSection = SchedulesSection()
    log: LogSection = LogSection()
    retention: Retention = Retention()
    metrics: MetricsSection = MetricsSection()
    console: ConsoleSection = ConsoleSection()
    api: ApiSection = ApiSection()
    alerts: Alerts = Alerts()
    otel: Otel = Otel()
    command: CommandSection = CommandSection()
    files: Files = Files()
    http: Http = Http()
    mail: MailSection = MailSection()
    actions: Actions = Actions()
    cleanup: Cleanup = Cleanup()
    backup: Backup = Backup()
    batch: Functions = Functions()
    door: DoorSection = DoorSection()
    sources: dict[str, SourceSection] = {}
    sinks: dict[str, SinkSection] = {}
    executors: dict[str, ExecutorSection] = {}
    gateway: Gateway = Gateway()
    file: str | None = None
    directory: str = ""
    origins: dict[str, str] = {}

    def get(self, name: str) -> Any:
        """The value of a setting by its dotted name, such as ``pools.high.slots``."""
        value: Any = self
        for part in name.split("."):
            if isinstance(value, SourceSection | SinkSection | ExecutorSection) and part in value.options:
                value = value.options
            value = value[part] if isinstance(value, dict) else getattr(value, part)
        return value


def _kinds(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, kind in fields_of(struct).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _kinds(kind, f"{prefix}{name}.")
        elif prefix and typing.get_origin(kind) is not dict:
            yield prefix + name, kind


KINDS: Mapping[str, Any] = dict(_kinds(Config))
"""Every setting's dotted name and annotated type, in the order of the documentation."""

TABLES: Mapping[str, Mapping[str, Any]] = {
    "alerts.sinks": fields_of(AlertSink),
    "sources": common_settings(SourceSection) | {OPEN: object},
    "sinks": common_settings(SinkSection) | {OPEN: object},
    "executors": common_settings(ExecutorSection) | {OPEN: object},
}
"""Sections whose entries a user names, each with the settings of an entry and their annotated types."""


_SINK_SECRETS = frozenset(f"alerts.sinks.*.{name}" for name in ("url", "secret", "token"))
SECRETS = frozenset({"mail.password", "console.proxy_secret", "door.token", "gateway.secret"}) | _SINK_SECRETS
"""Settings whose values are never shown; ``*`` stands for an entry of a table."""
