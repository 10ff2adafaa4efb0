"""The settings in effect as `config check` shows them, and the difference between two configurations."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from scheduler.config.messages import is_secret_option
from scheduler.config.model import KINDS, SECRETS, TABLES, Config
from scheduler.config.sources import OPEN, format_duration, is_duration
from scheduler.model.redact import redact, shown_url


class Setting(msgspec.Struct, frozen=True):
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
