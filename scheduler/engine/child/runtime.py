"""The Runtime of attempts in a child process, which asks the engine over the link."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.runtime import CpuFuture
from scheduler.engine.child.imports import resolve
from scheduler.engine.child.link import Link
from scheduler.errors import ConfigError
from scheduler.model.outcome import Lives, Outcome
from scheduler.model.registry import Kind, bind, make_kind, parts_of
from scheduler.model.spec import Draft, TaskSpec
from scheduler.model.task import Task, TaskFunction
from scheduler.ports import SystemClock

if TYPE_CHECKING:
    from scheduler.store.db.database import Database


class _Unknown(Task):
    """A placeholder for a kind that is not imported yet."""

    def run(self, ctx: Any) -> None: ...


UNKNOWN = make_kind(_Unknown, None, None)


class RemoteAttempt(Attempt):
    """An attempt in a child process. It sends its output to the engine at once."""

    def __init__(self, claimed: Any, number: int, say: Callable[[str], None]) -> None:
        super().__init__(claimed, UNKNOWN, (0, 2), 0.0)
        self.number = number
        self.say = say

    def capture(self, text: str) -> None:
        self.say(text)


class Drafts:
    """Makes specs of tasks that handlers spawn: the payload here, the rest in the engine.

    It names a kind as the type itself does, not as the engine registered it.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def draft(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        drafted = getattr(task, "_drafted", None)  # a builder of a Scheduler in this process
        if drafted is not None:
            return drafted()
        kind = self._kind(task if isinstance(task, TaskFunction) else type(task))
        value = bind(kind, args, kwargs) if isinstance(task, TaskFunction) else task
        text = kind.encode(value)
        kind_of = getattr(value, "kind_of", None)
        name = kind.name if kind_of is None else str(kind_of())
        return Draft(name, lambda: msgspec.convert(self._link.ask(0, "spec", name, text).result(), TaskSpec))

    def draft_of_item(self, kind: Any, item: Any) -> Any:
        return self.draft(*parts_of(kind, item))

    def name_of(self, kind: Any) -> str:
        if isinstance(kind, str):
            raise ConfigError("map in a child process takes a Task class or a @task function, not a kind's name")
        return self._kind(kind).name

    @staticmethod
    def _kind(source: Any) -> Kind:
        return make_kind(source, None, None)


class RemoteRuntime:
    """What an attempt needs of its engine, over the link."""

    waits_through_outages = True

    def __init__(self, link: Link) -> None:
        self.link = link
        self.drafts = Drafts(link)
        self.settings: dict[str, Any] = {}
        self.around_run: Callable[[Any], AbstractContextManager[Any]] | None = None
        self.lease_expires_at = float("inf")  # monotonic, as the engine last sent it
        self.offset = 0  # microseconds to the server's clock
        self._state: Any = None
        self._database: Database | None = None
        self._missing = False
        self._random = random.Random()

    def began(self, task_id: int, claim: int) -> None:
        """Does nothing: the engine notes it when the ``start`` message arrives."""

    def make_state(self, function: str | None, parent_has_state: bool) -> None:
        """Set ``ctx.state`` to what ``function`` returns; without one, a parent's state is missing."""
        if function is not None:
            self._state = resolve(function)()
        self._missing = parent_has_state and function is None

    @property
    def state(self) -> Any:
        if self._missing:
            raise ConfigError(
                "ctx.state does not reach child processes as it is: give the Scheduler "
                'child_state="module:function", which each of them calls for its own'
            )
        return self._state

    def extend(self, until: float) -> None:
        """Note that the engine's lease lasts until then."""
        self.lease_expires_at = until if self.lease_expires_at == float("inf") else max(self.lease_expires_at, until)

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

    def store(self, attempt: Attempt) -> tuple[Database, int, float, Lives]:
        """This process's own database, opened on first use, and the worker's id, lease and lives."""
        reply = self._ask(attempt, "store").result()
        if self._database is None:
            from scheduler.store.db.database import Database  # most children never need one

            self._database = Database(reply["url"], SystemClock(), auto_migrate=False)
        return self._database, reply["worker"], reply["lease"], Lives(*reply["lives"])

    def settled(self, attempt: Attempt, outcome: Outcome, ready: int) -> None:
        attempt.committed_outcome = outcome
        self._ask(attempt, "settled", ready).result()

    def decided(self, attempt: Attempt, outcome: Outcome) -> None:
        assert isinstance(attempt, RemoteAttempt)
        self.link.put("decided", attempt.number, outcome)

    def cpu(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> CpuFuture[Any]:
        """Call the function here: this is a child process already."""
        done: CpuFuture[Any] = CpuFuture()
        done.set_result(function(*args))
        return done

    def _ask(self, attempt: Attempt, method: str, *args: Any) -> Future[Any]:
        assert isinstance(attempt, RemoteAttempt)
        return self.link.ask(attempt.number, method, *args)
