"""Transports by their type: schedd's own and those of entry points; and a source or a sink made of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.config import extensions
from scheduler.config.extensions import ExtensionGroup, settings_of
from scheduler.config.model import Config
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
    return extensions.names(_group(group))


def find(group: str, type_name: str) -> Any:
    """The factory of a type. Raises ConfigError: there is none, or it cannot be imported."""
    return extensions.find(_group(group), type_name)


def _group(group: str) -> ExtensionGroup:
    return ExtensionGroup(group, _WHAT[group], _SECTION[group], OWN[group])


def make_source(config: Config, name: str) -> ports.Source | ports.PushSource:
    """The source ``[sources.NAME]``. Does no I/O but reading files of secrets. Raises ConfigError."""
    section = config.sources[name]
    factory: ports.SourceFactory = find(SOURCES, section.type)
    return factory(name, settings_of(factory.Settings, _group(SOURCES), name, section, config.origins))


def make_sink(config: Config, name: str) -> ports.Sink:
    """The sink ``[sinks.NAME]``. Does no I/O but reading files of secrets. Raises ConfigError."""
    section = config.sinks[name]
    factory: ports.SinkFactory = find(SINKS, section.type)
    return factory(name, settings_of(factory.Settings, _group(SINKS), name, section, config.origins))
