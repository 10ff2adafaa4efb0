"""One handler by itself: its payload is read as from a store, its context is real, and nothing is stored."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.errors import ConfigError, PayloadError
from scheduler.model.json_text import encode_json
from scheduler.model.parent_names import with_names
from scheduler.model.registry import Kind, Registry, bind, make_kind
from scheduler.model.running import current_attempt
from scheduler.model.task import Task, TaskFunction
from scheduler.model.times import instant_us, to_datetime
from scheduler.ports import SECOND
from scheduler.testing.clock import FakeClock

if TYPE_CHECKING:
    from scheduler.engine.attempt.attempt import Attempt
    from scheduler.engine.attempt.runtime import CpuFuture, Drafts
    from scheduler.engine.execution.context import AsyncContext
    from scheduler.model.outcome import Outcome

FIRST_PARENT = 501  # the id of the first parent that is given by its name
FIRST_CHILD = 1001  # the id of the first task that a handler spawns here


@dataclass
class Calls:
    """What a handler did through its context: give one to :func:`perform`, and look at it afterwards.

    ``progress``: (percent, message). ``steps``: values by name. ``spawned``: (kind, payload). ``emitted``: events with
    their payloads. ``slept_until``: times, to which the clock was moved. ``heartbeats``: how many.
    """

    progress: list[tuple[float, str | None]] = field(default_factory=list)
    steps: dict[str, Any] = field(default_factory=dict)
    spawned: list[tuple[str, Any]] = field(default_factory=list)
    emitted: dict[str, Any] = field(default_factory=dict)
    slept_until: list[datetime] = field(default_factory=list)
    heartbeats: int = 0


def perform(
    task: Any,
    /,
    *args: Any,
    attempt: int = 1,
    max_attempts: int | None = None,
    results: Mapping[int, Any] | Mapping[str, Any] | None = None,
    failures: Mapping[int, str] | None = None,
    events: Mapping[str, Any] | None = None,
    children: Mapping[str, Any] | None = None,
    calls: Calls | None = None,
    id: int = 1,
    key: str | None = None,
    headers: Mapping[str, Any] | None = None,
    correlation: str | None = None,
    subject: str | None = None,
    queue: str | None = None,
    slot: datetime | None = None,
    state: Any = None,
    settings: dict[str, Any] | None = None,
    clock: FakeClock | None = None,
    **kwargs: Any,
) -> Any:
    """Run the handler of one task once, in this thread, without a store. Returns its result, as JSON gives it back.

    ``task``: a Task instance, or a @task function with its arguments. What the handler raises comes out as it is:
    Retry, Snooze and PermanentError, too; hooks are not called.

    ``attempt``: the number of the attempt. ``results``, ``failures``: of its parents, by id; ``results`` by name
    instead, if you like, and ``ctx.await_task(id)`` returns them, too. ``events``: payloads of the events that it
    awaits, by name. ``children``: by kind, what awaited children return: a value, or a function of the payload.
    ``clock``: moved forward where the handler sleeps. The others are what the context shows. A payload's own argument
    of one of these names goes by position.

    Raises ConfigError for what needs a store (``ctx.transaction()``), and for an asynchronous handler in a running
    event loop: ``await perform_async(…)`` runs that.
    """
    given = {name: value for name, value in locals().items() if name not in ("task", "args", "kwargs")}
    one = _One(task, args, kwargs, **given)
    if not one.kind.is_async:
        return one.run()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(one.run_async())
    raise ConfigError("this thread has a running event loop: use  await perform_async(…)  for an asynchronous handler")


@functools.wraps(perform)
async def perform_async(task: Any, /, *args: Any, **kwargs: Any) -> Any:
    """:func:`perform` in the running event loop, for asynchronous tests; takes plain handlers, too."""
    given = dict(_defaults())
    given |= {name: kwargs.pop(name) for name in list(kwargs) if name in given}
    one = _One(task, args, kwargs, **given)
    return await one.run_async() if one.kind.is_async else one.run()


def _defaults() -> Mapping[str, Any]:
    return perform.__kwdefaults__ or {}


class _OpenRegistry(Registry):
    """Registers each type when it is first met."""

    def of(self, source: object) -> Kind:
        if isinstance(source, TaskFunction) or (isinstance(source, type) and issubclass(source, Task)):
            self.add(source)
        return super().of(source)


class _One:
    """One task, and the attempt that runs it."""

    def __init__(
        self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, calls: Calls | None, **given: Any
    ) -> None:
        from scheduler.engine.attempt.attempt import Attempt

        self.kind, value = _payload(task, args, kwargs, {**given, "calls": calls})
        text = self.kind.encode(value)
        attempt, clock = given["attempt"], given["clock"] if given["clock"] is not None else FakeClock()
        if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 1:
            raise ConfigError(f"attempt must be a whole number of at least 1, not {attempt!r:.80}")
        ids = _ids(given["results"] or {})
        given["results"] = {ids.get(parent, parent): one for parent, one in (given["results"] or {}).items()}
        claimed = _claimed(self.kind, text, clock.now(), given, ids)
        self.value = self.kind.decode(text, task_id=claimed.id)
        self.attempt = Attempt(claimed, self.kind, (claimed.priority, self.kind.slot_type), 0.0)
        self.attempt.started_at = claimed.claimed_at
        self.runtime: Any = _NoStore(calls if calls is not None else Calls(), clock, given)

    def run(self) -> Any:
        from scheduler.engine.execution.context import Context

        with self._current():
            return self._result(self.kind.run(self.value, Context(self.attempt, self.runtime)))

    async def run_async(self) -> Any:
        from scheduler.engine.execution import leftovers
        from scheduler.engine.execution.context import AsyncContext

        ctx: AsyncContext[Any] = AsyncContext(self.attempt, self.runtime)
        with self._current():
            result = await self.kind.run(self.value, ctx)
            if self.attempt.calls or self.attempt.kept:
                await leftovers.finish(self.attempt)
            return self._result(result)

    @contextmanager
    def _current(self) -> Iterator[None]:
        token = current_attempt.set(self.attempt)
        try:
            yield
        finally:
            current_attempt.reset(token)
            self.attempt.ended = True

    @staticmethod
    def _result(result: Any) -> Any:
        from scheduler.engine.attempt.outcomes import result_text

        text = result_text(result)
        return None if text is None else msgspec.json.decode(text)


def _payload(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Mapping[str, Any]) -> tuple[Kind, Any]:
    """The kind of a task, and its payload as an instance. Raises PayloadError, ConfigError."""
    if isinstance(task, TaskFunction):
        kind = make_kind(task, None, None)
        for name in set(_defaults()) & set(task.signature.parameters):
            if given[name] != _defaults()[name]:
                raise PayloadError(f"{kind.name} and perform() both take {name!r}: give the payload's by position")
        return kind, bind(kind, args, kwargs)
    if isinstance(task, Task):
        if args or kwargs:
            unknown = next(iter(kwargs), "a second argument")
            raise PayloadError(f"a task instance takes no payload beside its fields, and perform() no {unknown!r:.80}")
        return make_kind(type(task), None, None), task
    if isinstance(task, type) and issubclass(task, Task):
        raise PayloadError(f"pass an instance, {task.__name__}(…), not the class")
    raise PayloadError(f"perform() takes a Task instance or a @task function, not {task!r:.80}")


def _ids(results: Mapping[Any, Any]) -> dict[Any, int]:
    """The ids of the parents that have names."""
    return {parent: number for number, parent in enumerate(results, FIRST_PARENT) if isinstance(parent, str)}


def _claimed(kind: Kind, text: str, now: int, given: Mapping[str, Any], names: Mapping[Any, int]) -> Any:
    from scheduler.operations.new_task import encode_headers
    from scheduler.store.tasks.claim import Claimed

    headers, options = given["headers"], kind.options
    spec = kind.usual
    return Claimed(
        id=given["id"],
        claim=1,
        attempt=given["attempt"],
        attempt_base=0,
        max_attempts=spec.max_attempts if given["max_attempts"] is None else given["max_attempts"],
        retry=spec.retry,
        timeout=spec.timeout,
        dead_letter=int(spec.dead_letter),
        payload=text,
        schema_version=options.schema_version,
        key=given["key"],
        correlation=given["correlation"],
        created_at=now,
        extras=0,
        run_at=now,
        queue=options.queue if given["queue"] is None else given["queue"],
        lane=kind.name,
        priority=int(options.priority),
        kind=kind.name,
        claimed_at=now,
        subject=given["subject"],
        headers=with_names(None if headers is None else encode_headers(headers), names),
        slot=None if given["slot"] is None else instant_us(given["slot"], "slot"),
    )


class _NoStore:
    """The Runtime of such an attempt: it answers each request at once, and notes it."""

    around_run: Callable[[Any], AbstractContextManager[Any]] | None = None
    lease_expires_at = float("inf")
    waits_through_outages = False

    def __init__(self, calls: Calls, clock: FakeClock, given: Mapping[str, Any]) -> None:
        self.calls, self.clock = calls, clock
        self.state = given["state"]
        self.settings: dict[str, Any] = given["settings"] if given["settings"] is not None else {}
        self._results = dict(given["results"] or {})
        self._failures, self._events = given["failures"] or {}, given["events"] or {}
        self._children = given["children"] or {}
        self._next_child = FIRST_CHILD
        self._spawned: dict[int, tuple[str, Any]] = {}

    @functools.cached_property
    def drafts(self) -> Drafts:
        from scheduler.app import Scheduler
        from scheduler.client.builder import SpecFactory

        nowhere = Scheduler("sqlite:////nonexistent/schedd.db")  # which is never opened
        nowhere.registry = nowhere.submitter.registry = _OpenRegistry()
        return SpecFactory(nowhere.submitter)

    def began(self, _task_id: int, _claim: int) -> None:
        """Nothing notes it."""

    def now(self) -> int:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def random(self) -> float:
        return 0.0

    def request(self, _attempt: Attempt, what: str, args: Mapping[str, Any]) -> Future[dict[str, Any]]:
        answer: Future[dict[str, Any]] = Future()
        try:
            answer.set_result({"held": True, **getattr(self, f"_{what}")(**args)})
        except Exception as error:
            answer.set_exception(error)
        return answer

    def _beat(self, percent: float | None, message: str | None) -> dict[str, Any]:
        if percent is None:
            self.calls.heartbeats += 1
        else:
            self.calls.progress.append((percent, message))
        return {}

    def _note(self, **_: Any) -> dict[str, Any]:
        return {}

    def _record(self, name: str, value: str | None, **_: Any) -> dict[str, Any]:
        self.calls.steps[name] = _decoded(value)
        return {}

    def _sleep(self, until: int, **_: Any) -> dict[str, Any]:
        self.calls.slept_until.append(to_datetime(until))
        if until > self.clock.now():
            self.clock.jump((until - self.clock.now()) / SECOND)
        return {}

    def _await_event(self, event: str, **_: Any) -> dict[str, Any]:
        if event not in self._events:
            raise ConfigError(f"the handler awaits event {event!r}: perform(…, events={{{event!r}: its payload}})")
        return {"value": encode_json(self._events[event], f"the payload of event {event!r}")}

    def _emit(self, event: str, payload: str | None, **_: Any) -> dict[str, Any]:
        first = event not in self.calls.emitted
        self.calls.emitted.setdefault(event, _decoded(payload))
        return {"value": "true" if first else "false"}

    def _spawn(self, specs: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        made = []
        for spec in specs:
            self._spawned[self._next_child] = one = (spec["kind"], msgspec.json.decode(spec["payload"]))
            self.calls.spawned.append(one)
            made.append([self._next_child, True])
            self._next_child += 1
        return {"value": msgspec.json.encode(made).decode()}

    def _await_tasks(self, items: list[int], many: bool, **_: Any) -> dict[str, Any]:
        return {} if many else {"value": self._result(items[0])}

    def _result(self, task_id: int) -> str:
        if task_id in self._results:
            return encode_json(self._results[task_id], f"the result of task {task_id}")
        if task_id not in self._spawned:
            raise ConfigError(f"the handler awaits task {task_id}: perform(…, results={{{task_id}: what it returned}})")
        kind, payload = self._spawned[task_id]
        if kind not in self._children:
            raise ConfigError(
                f"the handler awaits a child of kind {kind}: perform(…, children={{{kind!r}: what it returns, or a "
                "function of its payload})"
            )
        given = self._children[kind]
        return encode_json(given(payload) if callable(given) else given, f"the result of a child of kind {kind}")

    def load(self, _attempt: Attempt, what: str, args: Mapping[str, Any]) -> Any:
        if what == "results":
            return [(parent, encode_json(value, "a result")) for parent, value in sorted(self._results.items())]
        if what == "failures":
            return sorted(self._failures.items())
        if what == "ends":
            return [(self._result(task_id), None) for task_id in args["ids"]]
        return []

    def store(self, _attempt: Attempt) -> Any:
        raise ConfigError("ctx.transaction() needs a store: use Scheduler.for_testing(), or pytest's fixture schedd")

    def settled(self, _attempt: Attempt, _outcome: Outcome, _ready: int) -> None:
        """Nothing settles here."""

    def decided(self, _attempt: Attempt, _outcome: Outcome) -> None:
        """Nothing is decided here."""

    def cpu(self, _attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> CpuFuture[Any]:
        from scheduler.engine.attempt.runtime import CpuFuture

        done: CpuFuture[Any] = CpuFuture()
        done.set_result(function(*args))
        return done


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
