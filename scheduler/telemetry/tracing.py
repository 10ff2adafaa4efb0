"""Makes what traces the tasks of a program, once that is wanted: OpenTelemetry is not imported before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduler.errors import ConfigError
from scheduler.telemetry.providers import MISSING

if TYPE_CHECKING:
    from scheduler.config.model import Otel
    from scheduler.telemetry.otel import Tracing


def make_tracing(options: Otel, now: Callable[[], int], server: str | None) -> Tracing:
    """What traces the tasks of a program. ``now``: microseconds; ``server``: the host of the database.

    Raises ConfigError if OpenTelemetry is missing, or cannot be used.
    """
    try:
        from scheduler.telemetry.otel import Tracing
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ConfigError(MISSING) from None
    return Tracing(options, now, server)
