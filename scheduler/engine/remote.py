"""What an attempt in a child process sees of its engine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.engine import functions
from scheduler.engine.attempt import Attempt
from scheduler.engine.imports import resolve
from scheduler.engine.link import Link
from scheduler.errors import ConfigError
from scheduler.model.outcome import Outcome
from scheduler.model.registry import Kind, bind, make_kind, parts_of
from scheduler.model.spec import Draft, TaskSpec
from scheduler.model.task import Task, TaskFunction
from scheduler.ports import SystemClock

if TYPE_CHECKING:
    from scheduler.store.database import Database


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


class Drafts:
    """Drafts what handlers in a child process spawn: the payload is made here, all else by the engine.

    It knows a kind by the name that its type gives itself.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def draft(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        drafted = getattr(task, "_drafted", None)  # a builder of a Scheduler of this process
        if drafted is not None:
            return drafted()
        kind = self._kind(task if isinstance(task, TaskFunction) else type(task))
        value = bind(kind, args, kwargs) if isinstance(task, TaskFunction) else task
        text = kind.encode(value)
        kind_of = getattr(value, "kind_of", None)
        name = kind.name if kind_of is None else str(kind_of())
        return Draft(name, lambda: msgspec.convert(self._link.ask(0, "spec", name, text).result(), TaskSpec))

    def of_item(self, kind: Any, item: Any) -> Any:
        return self.draft(*parts_of(kind, item))

    def name_of(self, kind: Any) -> str:
        if isinstance(kind, str):
            raise ConfigError("map in a child process takes a Task class or a @task function, not a kind's name")
        return self._kind(kind).name

    @staticmethod
    def _kind(source: Any) -> Kind:
        return make_kind(source, None, None)


class Remote:
    """The Runtime of attempts in a child process: asks the engine over the link."""

    patient = True

    def __init__(self, link: Link) -> None:
        self.link = link
        self.drafts = Drafts(link)
        self.settings: dict[str, Any] = {}
        self.around_run: Callable[[Any], AbstractContextManager[Any]] | None = None
        self.lapses_at = float("inf")  # when the engine's lease runs out, as far as it has said (monotonic)
        self.offset = 0  # microseconds to the server's clock
        self._state: Any = None
        self._database: Database | None = None
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

    def extend(self, until: float) -> None:
        """The engine has its lease until then."""
        self.lapses_at = until if self.lapses_at == float("inf") else max(self.lapses_at, until)

    def now(self) -> int:
        return time.time_ns() // 1000 + self.offset

    def monotonic(self) -> float:
        return time.monotonic()

    def random(self) -> float:
        return self._random.random()

    def request(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Future[dict[str, Any]]:
        return self._ask(attempt, "request", what, dict(args))

    def load(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Any:
        return self._ask(attempt, "load", what, dict(args)).result()

    def store(self, attempt: Attempt) -> tuple[Database, int, float]:
        """The database, opened by this process for itself when it is first needed."""
        told = self._ask(attempt, "store").result()
        if self._database is None:
            from scheduler.store.database import Database  # most children never need one

            self._database = Database(told["url"], SystemClock(), auto_migrate=False)
        return self._database, told["worker"], told["lease"]

    def settled(self, attempt: Attempt, outcome: Outcome, ready: int) -> None:
        attempt.settled = outcome
        self._ask(attempt, "settled", ready).result()

    def cpu(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> functions.Answer[Any]:
        """This is a process of its own already."""
        done: functions.Answer[Any] = functions.Answer()
        done.set_result(function(*args))
        return done

    def _ask(self, attempt: Attempt, method: str, *args: Any) -> Future[Any]:
        assert isinstance(attempt, RemoteAttempt)
        return self.link.ask(attempt.number, method, *args)
