"""What a Scheduler, and the built-in tasks, take from the configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from scheduler.config.model import KINDS, Config, Otel
from scheduler.config.paths import PATHS
from scheduler.config.sources import UnfitSetting, convert, shown
from scheduler.errors import ConfigError
from scheduler.model.defaults import POOLS
from scheduler.model.inbox import INBOX
from scheduler.model.outgoing import OUTBOX


def scheduler_options(config: Config) -> dict[str, Any]:
    """The keyword arguments of a Scheduler with this configuration, besides its url and ``state``."""
    pools = {name: getattr(config.pools, name) for name in POOLS}
    return {
        "auto_migrate": config.store.auto_migrate,
        "notify": config.store.notify,
        "queues": _queues(config),
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
        "unmoved_after": config.worker.unmoved_after,
        "graphs": config.worker.graphs,
        "graphs_in": config.worker.graphs_in,
        "timezone": config.schedules.timezone,
        "misfire_grace": config.schedules.misfire_grace,
        "retention": {n: s for n, s in msgspec.structs.asdict(config.retention).items() if s is not None},
        "rollups": config.metrics.rollups,
        "metrics": config.metrics.listen is not None,
        "log_attempts": "notable" if config.log.attempts == "auto" else config.log.attempts,
        "otel": config.otel if config.otel.enabled else None,
        "settings": task_settings(config),
    }


def _queues(config: Config) -> tuple[str, ...]:
    """The queues that the worker serves: a daemon with sinks or sources serves theirs, too."""
    own = [*([OUTBOX] if config.sinks else []), *([INBOX] if config.sources else [])]
    named = config.worker.queues
    return named if "*" in named else tuple(dict.fromkeys([*named, *own]))


def otel_section(given: Otel | Mapping[str, Any]) -> Otel:
    """The settings of ``[otel]``, checked as those of a file are. Raises ConfigError."""
    if isinstance(given, Otel):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"otel must be the settings of [otel] by name, not {given!r:.80}")
    made: dict[str, Any] = {"enabled": True}
    for name, value in given.items():
        kind = KINDS.get(f"otel.{name}")
        if kind is None:
            known = [setting.removeprefix("otel.") for setting in KINDS if setting.startswith("otel.")]
            raise ConfigError(f"otel has no setting {name!r:.80}; there are {', '.join(known)}")
        try:
            made[name] = None if value is None else convert(kind, value, text=False)
        except UnfitSetting as error:
            raise ConfigError(f"otel.{name}: expected {error}, not {shown(value)}") from None
    return Otel(**made)


def task_settings(config: Config) -> dict[str, dict[str, Any]]:
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
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    made["http"]["secrets_dir"] = made["http"]["secrets_dir"] or credentials
    if made["actions"]["key_file"] is None and credentials:
        made["actions"]["key_file"] = os.path.join(credentials, "signing-key.pem")
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
_PATHS = [(section, name) for section, name in PATHS if section in _FOR_TASKS]


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _sqlite_path(url: str) -> str | None:
    """The file that a SQLite URL names; None for another database."""
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] != "sqlite" or not rest.startswith("/"):
        return None
    return os.path.abspath(unquote(rest[1:].partition("?")[0]))
