"""Keeps the HTTP client's own log lines, which have whole URLs and headers, out of the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOGGERS = ("httpx2", *(f"httpcore2.{name}" for name in ("connection", "http11", "http2", "proxy", "socks")))


class _ClientLogFilter(logging.Filter):
    """Drops the lines of requests that schedd makes; those of other users of the client stay."""

    ours: ContextVar[bool] = ContextVar("ours", default=False)

    def filter(self, record: logging.LogRecord) -> bool:
        return not self.ours.get()


_FILTER = _ClientLogFilter()


@contextmanager
def unlogged() -> Iterator[None]:
    """``with unlogged():`` around a request, in the thread or coroutine that makes it."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)  # once: the same again is none
    token = _FILTER.ours.set(True)
    try:
        yield
    finally:
        _FILTER.ours.reset(token)
