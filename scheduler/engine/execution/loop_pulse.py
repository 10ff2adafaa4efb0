"""Checks from another thread whether an event loop still runs its callbacks."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Pulse:
    """The check of one event loop. ``thread``: the ident of its thread, once it runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = 0
        self._asked_at: float | None = None  # monotonic; None: it has answered

    def ask(self, monotonic: float) -> float | None:
        """Since when (monotonic) the loop has not answered; None if it has."""
        if self._asked_at is None:
            self._asked_at = monotonic
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._on_answer)
            return None
        return self._asked_at

    def _on_answer(self) -> None:
        self._asked_at = None
