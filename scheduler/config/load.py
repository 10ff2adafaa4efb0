"""Finds, reads, merges and checks the configuration.

A later source wins: defaults, the file, $CREDENTIALS_DIRECTORY, the environment. See docs/reference/configuration.md.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from scheduler.config.messages import is_secret_option
from scheduler.config.model import KINDS, SECRETS, TABLES, Config
from scheduler.config.sources import OPEN, Section, SettingsReader, fields_of, format_duration, is_duration
from scheduler.config.validation import check
from scheduler.model.redact import redact, shown_url

PLACES = ("config.toml", "/etc/schedd/config.toml")
_SECRET = frozenset({"store.url", *SECRETS})  # never echoed in an error, shown without its password elsewhere


def find(path: str | None, environ: Mapping[str, str] = os.environ, directory: str = "") -> str | None:
    """The configuration file: the one named, else $SCHEDD_CONFIG, else the first of PLACES, else None."""
    named = path or environ.get("SCHEDD_CONFIG")
    if named:
        return named
    return next((place for place in PLACES if os.path.lexists(os.path.join(directory, place))), None)


def load(path: str | None = None, environ: Mapping[str, str] = os.environ, directory: str | None = None) -> Config:
    """Read and check the configuration. ``path``: the value of ``--config``; ``directory``: from which relative paths
    count, by default the current one.

    Raises ConfigError for a setting that is unreadable, unknown or not valid; it names the setting and its source.
    """
    where = _here() if directory is None else directory
    file = find(path, environ, where)
    if directory is not None and file is not None:
        file = os.path.join(directory, file)
    reader = SettingsReader(KINDS, _SECRET, TABLES)
    layers = [reader.file(file)] if file is not None else []
    layers += [reader.credentials(environ.get("CREDENTIALS_DIRECTORY")), reader.environment(environ)]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for name, (value, source) in layer.items():
            values[name], origins[name] = value, source
    config = _build(values, None if file is None else os.path.abspath(file), origins)
    config = msgspec.structs.replace(config, directory=where)
    check(config)
    return config


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _build(values: dict[str, Any], file: str | None, origins: dict[str, str]) -> Config:
    """Make the Config of the merged values; other settings keep their defaults."""

    def section(struct: type[msgspec.Struct], default: Any, prefix: str) -> Any:
        changes = {}
        for name, kind in fields_of(struct).items():
            if _is_section(kind):
                changes[name] = section(kind, getattr(default, name), f"{prefix}{name}.")
            elif name == "options":  # of an entry of an open table: what is no common setting
                own = {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}
                changes[name] = {n: v for n, v in own.items() if n not in struct.__struct_fields__}
            elif typing.get_origin(kind) is dict and _is_section(typing.get_args(kind)[1]):
                table, struct_of_entry = f"{prefix}{name}.", typing.get_args(kind)[1]
                entries = dict.fromkeys(n.removeprefix(table).partition(".")[0] for n in values if n.startswith(table))
                changes[name] = {e: section(struct_of_entry, struct_of_entry(), f"{table}{e}.") for e in entries}
            elif prefix + name in values:
                changes[name] = values[prefix + name]
        return msgspec.structs.replace(default, **changes)

    config: Config = msgspec.structs.replace(section(Config, Config(), ""), file=file, origins=origins)
    if config.store.auto_migrate is None:
        on_sqlite = config.store.url.partition(":")[0].partition("+")[0] == "sqlite"
        config = msgspec.structs.replace(config, store=msgspec.structs.replace(config.store, auto_migrate=on_sqlite))
    return config


class SettingInEffect(msgspec.Struct, frozen=True):
    """One line of ``config check``: ``value`` fits JSON, ``text`` is as in TOML; neither shows a password."""

    name: str
    value: Any
    text: str
    source: str


def _all_kinds(config: Config) -> dict[str, Any]:
    """``KINDS``, and the settings of the entries that there are."""
    found = dict(KINDS)
    for table, kinds in TABLES.items():
        for entry, section in config.get(table).items():
            named = {name: kind for name, kind in kinds.items() if name != OPEN}
            named |= dict.fromkeys(getattr(section, "options", ()), object)
            found |= {f"{table}.{entry}.{name}": kind for name, kind in named.items()}
    return found


def _is_secret(name: str) -> bool:
    head, _, last = name.rpartition(".")
    table = head.rpartition(".")[0]
    return bool({name, f"{table}.*.{last}"} & SECRETS) or (OPEN in TABLES.get(table, ()) and is_secret_option(last))


def describe(config: Config) -> list[SettingInEffect]:
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
            SettingInEffect(
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
