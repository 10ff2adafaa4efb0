"""Makes the sink that a configuration describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.alerts.messages import Origin
from scheduler.alerts.sinks.alertmanager import Alertmanager
from scheduler.alerts.sinks.command import Command
from scheduler.alerts.sinks.mail import Mail
from scheduler.alerts.sinks.ntfy import Ntfy
from scheduler.alerts.sinks.sink import Sink, require_client
from scheduler.alerts.sinks.slack import Slack
from scheduler.alerts.sinks.webhook import Webhook
from scheduler.config.alerts import AlertSink

_HTTP = ("webhook", "slack", "ntfy", "alertmanager")
_TYPES: Mapping[str, Callable[[AlertSink, Mapping[str, Any]], Sink]] = {
    "webhook": Webhook,
    "slack": Slack,
    "ntfy": Ntfy,
    "email": Mail,
    "command": Command,
}


def make_sink(sink: AlertSink, settings: Mapping[str, Any], origin: Origin) -> Sink | Alertmanager:
    """``settings``: sections of the configuration, as the built-in tasks have them. Raises ConfigError."""
    if sink.type in _HTTP:
        require_client()
    return Alertmanager(sink, settings, origin) if sink.type == "alertmanager" else _TYPES[sink.type](sink, settings)
