"""A fork server that outlives its test: child processes of the next one come from it at once, as it has imported all
that they need. Tests of how a pool ends, of the fork server itself and of what is imported have one of their own."""

from __future__ import annotations

import select
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.engine.processes import fork_client as nursery
from support.leftovers import MARK, marked

PATIENCE = 10.0  # seconds that what was killed may take to end


class SharedForkServer(nursery.ForkServerClient):
    """Used by one pool at a time."""

    def __init__(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            self.mark = uuid.uuid4().hex
            patch.setenv(MARK, self.mark)
            patch.setattr(nursery, "PRELOAD", (*nursery.PRELOAD, "faults.isolated"))
            super().__init__()
        self.free = True
        self._coming: set[int] = set()  # tags
        self._there: set[int] = set()  # pids

    def start(self, tag: int, fds: tuple[int, int, int], place: str | None = None) -> None:
        self._coming.add(tag)
        super().start(tag, fds, place)

    def events(self) -> Iterator[list[Any]]:
        for event in super().events():
            if event[0] in ("started", "failed"):
                self._coming.discard(event[1])
            if event[0] == "started":
                self._there.add(event[2])
            elif event[0] == "ended":
                self._there.discard(event[1])
            yield event

    def close(self) -> None:
        """End every child, and be free again."""
        self.kill_at(float("inf"))
        for pid in self._there:
            self.kill(pid)
        deadline = time.monotonic() + PATIENCE
        while self._coming or self._there:
            assert select.select([self.control], [], [], max(0.0, deadline - time.monotonic()))[0], (
                "what was killed ends"
            )
            try:
                for event in self.events():
                    if event[0] == "started":
                        self.kill(event[2])
            except EOFError:  # a test has killed it
                self.end()
                return
        self.reply_expected = self.reply_seen = False
        self.free = True

    def end(self) -> None:
        super().close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None


class SharedForkServers:
    def __init__(self) -> None:
        self._server: SharedForkServer | None = None

    def lend(self) -> nursery.ForkServerClient:
        """For a pool, instead of a fork server of its own."""
        if self._server is None or not self._server.alive:
            self._server = SharedForkServer()
        elif not self._server.free:
            return nursery.ForkServerClient()
        self._server.free = False
        return self._server

    def none_left(self) -> None:
        """Nothing but the fork server is there. Raises AssertionError that names what is."""
        if self._server is not None and self._server.alive:
            assert self._server.free, "its pool was not closed"
            left = [line for line in marked(self._server.mark) if line.split()[0] != str(self._server.pid)]
            assert not left, f"left behind: {left}"

    def close(self) -> None:
        if self._server is not None and self._server.alive:
            self._server.end()
