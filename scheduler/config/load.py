"""Finds, reads, merges and checks the configuration.

A later source wins: defaults, the file, $CREDENTIALS_DIRECTORY, the environment. See docs/reference/configuration.md.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.config.model import KINDS, SECRETS, TABLES, Config
from scheduler.config.section import Section
from scheduler.config.sources import Reader
from scheduler.config.validation import check

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
    reader = Reader(KINDS, _SECRET, TABLES)
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
        for name, kind in typing.get_type_hints(struct).items():
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
