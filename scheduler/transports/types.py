"""Transports by their type: schedd's own and those of entry points; and a source or a sink made of its settings."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from scheduler.config.messages import FILE, Sink, Source, is_marked_secret
from scheduler.config.model import Config
from scheduler.config.sources import PREFIX, Unfit, convert, shown
from scheduler.errors import ConfigError
from scheduler.transports import ports

SOURCES = "schedd.sources"
SINKS = "schedd.sinks"
# schedd's own, as "module:class": found without a search through all installed packages.
OWN: Mapping[str, Mapping[str, str]] = {
    SOURCES: {
        "cloudevents": "scheduler.transports.cloudevents:CloudEventsSource",
        "cloudflare": "scheduler.transports.cloudflare:CloudflareSource",
        "cloudflare-push": "scheduler.transports.cloudflare_push:CloudflarePushSource",
        "nats": "scheduler.transports.nats:NatsSource",
        "rabbitmq": "scheduler.transports.rabbitmq:RabbitSource",
        "redis": "scheduler.transports.redis:RedisSource",
        "sqs": "scheduler.transports.sqs:SqsSource",
    },
    SINKS: {
        "cloudevents": "scheduler.transports.cloudevents:CloudEventsSink",
        "cloudflare": "scheduler.transports.cloudflare:CloudflareSink",
        "nats": "scheduler.transports.nats:NatsSink",
        "rabbitmq": "scheduler.transports.rabbitmq:RabbitSink",
        "redis": "scheduler.transports.redis:RedisSink",
        "sqs": "scheduler.transports.sqs:SqsSink",
    },
}
_WHAT = {SOURCES: "source", SINKS: "sink"}
_SECTION = {SOURCES: "sources", SINKS: "sinks"}


def names(group: str) -> list[str]:
    """The types that there are, of a group of entry points."""
    from importlib import metadata

    return sorted({*OWN[group], *(found.name for found in metadata.entry_points(group=group))})


def find(group: str, type_name: str) -> Any:
    """The factory of a type. Raises ConfigError: there is none, or it cannot be imported."""
    from importlib import metadata

    place = OWN[group].get(type_name)
    if place is None:
        place = next((found.value for found in metadata.entry_points(group=group, name=type_name)), None)
    what = _WHAT[group]
    if place is None:
        raise ConfigError(
            f"there is no {what} of type {type_name!r:.80}; there are {', '.join(names(group)) or 'none'}"
        )
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the {what} type {type_name} ({place}) cannot be loaded: {error}") from None


def make_source(config: Config, name: str) -> ports.Source | ports.PushSource:
    """The source ``[sources.NAME]``. Does no I/O but reading files of secrets. Raises ConfigError."""
    section = config.sources[name]
    factory: ports.SourceFactory = find(SOURCES, section.type)
    return factory(name, settings_of(factory.Settings, SOURCES, name, section, config.origins))


def make_sink(config: Config, name: str) -> ports.Sink:
    """The sink ``[sinks.NAME]``. Does no I/O but reading files of secrets. Raises ConfigError."""
    section = config.sinks[name]
    factory: ports.SinkFactory = find(SINKS, section.type)
    return factory(name, settings_of(factory.Settings, SINKS, name, section, config.origins))


def settings_of(
    struct: type[msgspec.Struct], group: str, name: str, section: Source | Sink, origins: Mapping[str, str]
) -> msgspec.Struct:
    """A transport's own settings, checked. A common setting that ``struct`` has as well is passed on.

    Raises ConfigError for a setting that is unknown, missing, or of another type.
    """
    table = f"{_SECTION[group]}.{name}"
    kinds = typing.get_type_hints(struct, include_extras=True)
    left, made = dict(section.options), dict[str, Any]()

    def refuse(setting: str, why: str) -> typing.NoReturn:
        raise ConfigError(f"setting {table}.{setting} ({origins.get(f'{table}.{setting}', 'default')}): {why}")

    for field, kind in kinds.items():
        secret = is_marked_secret(kind)
        if secret and f"{field}{FILE}" in left and f"{field}{FILE}" not in kinds:
            if field in left:
                refuse(field, f"there is also {field}{FILE}: say one of the two")
            try:
                left[field] = _read(left.pop(f"{field}{FILE}"))
            except ConfigError as error:
                refuse(f"{field}{FILE}", str(error))
        if field in left:
            value = left.pop(field)
            try:
                made[field] = convert(kind, value, text=_is_text(origins.get(f"{table}.{field}", "")))
            except Unfit as error:
                refuse(field, f"expected {error}" + ("" if secret else f", not {shown(value)}"))
        elif field in section.__struct_fields__ and field != "options":
            made[field] = getattr(section, field)
    if left:
        known = sorted({*kinds, *section.__struct_fields__} - {"options"})
        refuse(
            next(iter(left)), f"a {_WHAT[group]} of type {section.type} has no such setting; it has {', '.join(known)}"
        )
    missing = [f.name for f in msgspec.structs.fields(struct) if f.required and f.name not in made]
    if missing:
        refuse(missing[0], f"a {_WHAT[group]} of type {section.type} needs it")
    return struct(**made)


def _is_text(origin: str) -> bool:
    """Whether a setting comes from the environment or a credential, where all values are texts."""
    return origin.startswith((PREFIX, "credential "))


def _read(path: object) -> str:
    try:
        text = Path(str(path)).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not text:
        raise ConfigError(f"{path} is empty")
    return text
