"""What an attempt in a child process sees of its engine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from scheduler.engine.attempt import Attempt
from scheduler.engine.imports import resolve
from scheduler.engine.link import Link
from scheduler.errors import ConfigError
from scheduler.model.checkpoint import Recorded, Sort
from scheduler.model.registry import make_kind
from scheduler.model.task import Task


class _Unknown(Task):
    """Stands for a kind that is still to be imported."""

    def run(self, ctx: Any) -> None: ...


UNKNOWN = make_kind(_Unknown, None, None)


class RemoteAttempt(Attempt):
    """What it captures goes to the engine at once, which keeps it."""

    def __init__(self, claimed: Any, number: int, say: Callable[[str], None]) -> None:
        super().__init__(claimed, UNKNOWN, (0, 2), 0.0)
        self.number = number
        self.say = say

    def capture(self, text: str) -> None:
        self.say(text)


class Remote:
    """The Runtime of attempts in a child process: asks the engine over the link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.settings: dict[str, Any] = {}
        self.around_run: Callable[[Any], AbstractContextManager[Any]] | None = None
        self.lapses_at = float("inf")  # the engine ends what runs here when its lease has run out
        self.offset = 0  # microseconds to the server's clock
        self._state: Any = None
        self._missing = False
        self._random = random.Random()

    def make_state(self, function: str | None, missed: bool) -> None:
        """``ctx.state`` of this process: what ``function`` returns. ``missed``: the parent has one, and we none."""
        if function is not None:
            self._state = resolve(function)()
        self._missing = missed and function is None

    @property
    def state(self) -> Any:
        if self._missing:
            raise ConfigError(
                "ctx.state does not reach child processes as it is: give the Scheduler "
                'child_state="module:function", which each of them calls for its own'
            )
        return self._state

    def now(self) -> int:
        return time.time_ns() // 1000 + self.offset

    def monotonic(self) -> float:
        return time.monotonic()

    def random(self) -> float:
        return self._random.random()

    def request(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Future[dict[str, Any]]:
        return self._ask(attempt, "request", what, dict(args))

    def recorded(self, attempt: Attempt) -> dict[str, Recorded] | None:
        told = self._ask(attempt, "recorded").result()
        return None if told is None else {name: Recorded(Sort(sort), *values) for name, sort, *values in told}

    def parent_results(self, task_id: int) -> dict[int, Any]:
        return {int(id): value for id, value in self.link.ask(0, "parent_results", task_id).result()}

    def dependency_failures(self, task_id: int) -> dict[int, str]:
        return {int(id): value for id, value in self.link.ask(0, "dependency_failures", task_id).result()}

    def cpu(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
        """This is a process of its own already."""
        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done

    def _ask(self, attempt: Attempt, method: str, *args: Any) -> Future[Any]:
        assert isinstance(attempt, RemoteAttempt)
        return self.link.ask(attempt.number, method, *args)
