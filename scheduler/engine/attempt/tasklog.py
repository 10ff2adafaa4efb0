"""``ctx.log``: structlog on top of the standard library's logging, without setup."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from scheduler.engine.attempt.capture import TASK_LOGGER

if TYPE_CHECKING:
    from scheduler.engine.execution.context import _ContextBase


def task_logger(ctx: _ContextBase) -> Any:
    """A bound logger for one attempt, over the logger ``scheduler.task.<kind>``."""
    import structlog

    return structlog.wrap_logger(
        logging.getLogger(f"{TASK_LOGGER}.{ctx.kind}"),
        processors=[_render],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
    )


def through_logging() -> None:
    """Send all of structlog through ``logging``, as the daemon does in its own process."""
    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            _render,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _render(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Render ``log.info("sent", to=x)`` as the message ``sent to=x``, with the fields as extra."""
    exc_info = event.pop("exc_info", None)
    message = str(event.pop("event", ""))
    fields = " ".join(f"{name}={value!r}" for name, value in event.items())
    extra = {"fields": dict(event)}
    return (f"{message} {fields}".strip(),), {"extra": extra, "exc_info": exc_info}
