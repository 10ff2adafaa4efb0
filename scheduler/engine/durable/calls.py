"""Durable calls: each records its result under a name, and later attempts skip it.

Each call is one generator of effects (effects.py). Two drivers perform these: ``drive`` for threads (thread_driver.py)
and ``drive_async`` for coroutines (async_driver.py).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from scheduler.engine.durable.effects import Await, FunctionEffect, Read, RequestEffect, SendEffect, Steps, Suspend
from scheduler.errors import DeterminismError, LeaseLost, PermanentError, Suspended
from scheduler.model.checkpoint import (
    CAUGHT_NOTE,
    INTERNAL_PREFIX,
    TASK_AWAIT_PREFIX,
    CheckpointReplay,
    CheckpointType,
    Recorded,
    check_event,
    check_name,
    encoded,
    revived,
)
from scheduler.model.running import inherit_from, send_in
from scheduler.model.spec import TaskId
from scheduler.model.texts import listed
from scheduler.model.times import instant_us, span_us, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from scheduler.engine.attempt.attempt import Attempt
    from scheduler.engine.attempt.runtime import Drafts, Runtime

T = TypeVar("T")
GROUPED = "grouped"
CHILDREN_PER_REQUEST = 100  # children that one dispatch cycle stores
MAX_UNSETTLED = 250  # records of grouped steps that are kept in memory while the database is slow or away
log = logging.getLogger("scheduler.engine")


@dataclass
class StepScope:
    """Where in a handler the code is: in a step, or (``transaction``) in a ctx.transaction().

    ``recorded``: the step's own transaction has committed its checkpoint, with this ``value`` (JSON). A transaction has
    the ``label`` of its step, if any; ``connection``: its own, while it is open; ``published``: how many messages
    without a key it has.
    """

    attempt: Attempt
    name: str = ""
    label: str = ""
    seq: int = 0
    started: int | None = None
    note: str | None = None
    transaction: bool = False
    recorded: bool = False
    value: str | None = None
    connection: Any = None
    published: int = 0


current_scope: ContextVar[StepScope | None] = ContextVar("schedd_frame", default=None)


class Durable:
    """The durable calls of one attempt."""

    def __init__(self, attempt: Attempt, runtime: Runtime) -> None:
        self.attempt = attempt
        self.runtime = runtime
        self.replay = CheckpointReplay()
        self.blocked: dict[Any, int] = {}  # waiting coroutines (async_driver.py): until when
        self.unsettled: deque[Future[dict[str, Any]]] = deque()  # replies to records of grouped steps
        self._lock = threading.Lock()
        self._notes: dict[str, str] = {}
        self._failures: dict[str, Collection[Any]] = {}  # raised by awaits, not yet noted as caught: see _awaited

    # the calls

    def step(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, grouped: bool
    ) -> Steps[Any]:
        """Call the function and record what it returns; later attempts get that instead.

        ``grouped``: the record is sent and not waited for, and it does not wait for those before it.
        """
        yield from self._enter(grouped=grouped)
        if not callable(function):
            raise PermanentError(f"step {name!r:.80} needs a function to call, not {function!r:.80}")
        label, seq = self._record_name(check_name(name), CheckpointType.STEP)
        found = yield from self._recorded(label, CheckpointType.STEP)
        if found is not None:
            return found.result()
        started = self.runtime.now()
        scope = StepScope(self.attempt, name, label, seq, started, self._note(label))
        with self._in_scope(scope), self.inside(f"step {name}"):
            value = yield FunctionEffect(function, args, kwargs)
        if scope.recorded:
            if value is not None:
                self._warn(f"step {name!r}: what it returns is not stored, only its transaction's result")
            return Recorded(CheckpointType.STEP, scope.value).result()
        text = encoded(value, f"the result of step {name!r}")
        record = {"name": label, "seq": seq, "value": text, "started_at": started, "note": scope.note}
        if grouped:
            self.unsettled.append((yield SendEffect("record", record)))
        else:
            yield from self._request("record", **record)
        return Recorded(CheckpointType.STEP, text).result()  # decoded, as a later attempt gets it

    def settle(self) -> Steps[None]:
        """Wait until the records of all grouped steps are committed. Raises what a reply carries."""
        while self.unsettled:
            reply = self.unsettled[0]
            try:
                answer = yield Await(reply)
            finally:
                with self._lock:  # another branch may have waited for the same one
                    if self.unsettled and self.unsettled[0] is reply:
                        self.unsettled.popleft()
            self.apply_reply(answer)

    def sleep_for(self, seconds: float | timedelta | str, name: str | None) -> Steps[None]:
        """Sleep until ``seconds`` after the first attempt began to sleep."""
        span = span_us(seconds, "sleep_for")
        return self._sleep(lambda: self.runtime.now() + span, name)

    def sleep_until(self, when: datetime, name: str | None) -> Steps[None]:
        """Sleep until then; returns at once if that is past."""
        instant = instant_us(when, "sleep_until")
        return self._sleep(lambda: instant, name)

    def _sleep(self, until: Callable[[], int], name: str | None) -> Steps[None]:
        yield from self._enter()
        label, seq = self._record_name(
            INTERNAL_PREFIX + "sleep" if name is None else check_name(name, "a sleep's name"), CheckpointType.SLEEP
        )
        found = yield from self._recorded(label, CheckpointType.SLEEP)
        if found is not None:
            end = int(found.result())
        else:
            end = until()
            yield from self._request("sleep", name=label, seq=seq, until=end, note=self._note(label))
        if end > self.runtime.now():
            self._event("sleep", sleep=name, until=to_datetime(end).isoformat())
            yield Suspend(end)

    def await_event(self, event: str, timeout: float | timedelta | str | None) -> Steps[Any]:
        """The event's payload, once it is emitted; TimeoutError after ``timeout``."""
        span = None if timeout is None else span_us(timeout, "await_event(timeout=)")
        yield from self._enter(awaits=True)
        label, seq = self._record_name(f"{INTERNAL_PREFIX}event:{check_event(event)}", CheckpointType.EVENT)
        found = yield from self._recorded(label, CheckpointType.EVENT)
        if found is None:
            answer = yield from self._request(
                "await_event", name=label, seq=seq, event=event, timeout=span, note=self._note(label)
            )
            if "until" in answer:
                self._event("await_event", event=event)
                yield Suspend(answer["until"])
            found = Recorded(CheckpointType.EVENT, answer.get("value"), answer.get("failure"))
        return self._awaited(label, found)

    def emit_event(self, event: str, payload: Any) -> Steps[bool]:
        """Emit the event; False if it had been emitted before."""
        yield from self._enter()
        label, seq = self._record_name(f"{INTERNAL_PREFIX}emit:{check_event(event)}", CheckpointType.EMIT)
        found = yield from self._recorded(label, CheckpointType.EMIT)
        if found is not None:
            return bool(found.result())
        text = encoded(payload, f"the payload of event {event!r}")
        answer = yield from self._request(
            "emit", name=label, seq=seq, event=event, payload=text, note=self._note(label)
        )
        return bool(Recorded(CheckpointType.EMIT, answer["value"]).result())

    def spawn(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> Steps[TaskId]:
        """Store a child task, once over all attempts."""
        yield from self._enter()
        draft = self._drafts.draft(task, args, kwargs)
        base = f"{INTERNAL_PREFIX}spawn:{draft.kind}" if name is None else check_name(name, "a child's name")
        label, seq = self._record_name(base, CheckpointType.SPAWN)
        ids = yield from self._spawned(label, seq, lambda: [self._spec(draft)], None, f"spawn {name or draft.kind}")
        return ids[0]

    def await_task(self, task_id: int, timeout: float | timedelta | str | None) -> Steps[Any]:
        """The result of another task, once it has ended; raises its failure."""
        span = None if timeout is None else span_us(timeout, "await_task(timeout=)")
        yield from self._enter(awaits=True)
        if not isinstance(task_id, int) or isinstance(task_id, bool) or not 1 <= task_id < 2**63:
            raise PermanentError(f"await_task takes a task's id, not {task_id!r:.80}")
        if task_id == self.attempt.claimed.id:
            raise PermanentError("a task cannot await itself")
        label, seq = self._record_name(f"{TASK_AWAIT_PREFIX}{int(task_id)}", CheckpointType.TASK)
        found = yield from self._recorded(label, CheckpointType.TASK)
        if found is None:
            answer = yield from self._await(label, seq, [int(task_id)], span)
            found = Recorded(CheckpointType.TASK, answer.get("value"), answer.get("failure"))
        return self._awaited(label, found)

    def map(self, kind: Any, items: Iterable[Any], name: str | None) -> Steps[list[Any]]:
        """Store one child for each item; their results in the items' order, once all have ended."""
        yield from self._enter()
        listed = list(items)
        called = self._drafts.name_of(kind)
        base = f"{INTERNAL_PREFIX}map:{called}" if name is None else check_name(name, "a map's name")
        call = f"map {name or called}"
        label, seq = self._record_name(base, CheckpointType.TASK)
        ids: list[TaskId] = []
        for start in range(0, len(listed), CHILDREN_PER_REQUEST):
            part, place = self._record_name(f"{label}/{start}", CheckpointType.SPAWN)
            chunk = listed[start : start + CHILDREN_PER_REQUEST]
            ids += yield from self._spawned(part, place, lambda chunk=chunk: self._specs(kind, chunk), label, call)  # type: ignore[misc]
        if len(ids) != len(listed):
            self._mismatch(f"{label!r} has {len(ids)} recorded children, and now {len(listed)} items")
        found = yield from self._recorded(label, CheckpointType.TASK)
        ends = yield from self._ends(label, seq, [int(i) for i in ids], ended=found is not None)
        return [result_of(end) for end in ends]

    def _ends(self, label: str, seq: int, ids: list[int], *, ended: bool) -> Steps[list[Any]]:
        """How these children ended, once all have. ``ended``: an earlier attempt saw that."""
        ends: list[Any] | None = None if ids else []
        stale = False
        while ends is None:
            if stale or not ended:
                yield from self._await(label, seq, ids, None, many=True, stale=stale)
            ends = yield Read("ends", {"ids": ids})
            stale = True
        return ends

    @property
    def _drafts(self) -> Drafts:
        drafts = self.runtime.drafts
        assert drafts is not None, "an engine that runs handlers is given a drafter"
        return drafts

    def _spec(self, draft: Any) -> dict[str, Any]:
        """A child's spec as plain values. The child inherits the correlation and names its cause."""
        spec = draft.finish()
        inherit_from(spec, self.attempt.claimed)
        if self.attempt.trace is not None:
            send_in(spec, self.attempt.trace.current(), self.attempt.claimed.headers)
        made: dict[str, Any] = msgspec.to_builtins(spec)
        return made

    def _specs(self, kind: Any, items: Iterable[Any]) -> list[dict[str, Any]]:
        return [self._spec(self._drafts.draft_of_item(kind, item)) for item in items]

    def _spawned(
        self, label: str, seq: int, specs: Callable[[], list[dict[str, Any]]], group: str | None, span: str
    ) -> Steps[list[TaskId]]:
        found = yield from self._recorded(label, CheckpointType.SPAWN)
        value = None if found is None else found.value
        if found is None:
            with self.inside(span):
                answer = yield from self._request(
                    "spawn", name=label, seq=seq, specs=specs(), group=group, note=self._note(label)
                )
            value = answer["value"]
        return [TaskId(task_id, created) for task_id, created in msgspec.json.decode(value or "[]")]

    def _await(
        self, label: str, seq: int, ids: list[int], span: int | None, *, many: bool = False, stale: bool = False
    ) -> Steps[dict[str, Any]]:
        args = {"items": ids, "timeout": span, "many": many, "stale": stale}
        answer = yield from self._request("await_tasks", name=label, seq=seq, note=self._note(label), **args)
        if "until" in answer:
            self._event("await_task", count=len(ids))
            yield Suspend(answer["until"])
        return answer

    # what they share

    def _enter(self, *, awaits: bool = False, grouped: bool = False) -> Steps[None]:
        scope = self.current_step()
        if scope is not None and not scope.transaction:
            raise PermanentError("steps cannot be nested: do this before or after the step, not inside of it")
        if self.attempt.handler_done:
            raise PermanentError("the handler has ended: a hook cannot do anything durable with its context")
        if not grouped or len(self.unsettled) >= MAX_UNSETTLED:
            yield from self.settle()
        caught = None if awaits else self._caught_failures()
        if caught is not None:
            yield RequestEffect("note", caught)

    def _awaited(self, label: str, found: Recorded) -> Any:
        """The value or error of an await. A retry by hand clears an error not noted as caught."""
        if found.failure is not None:
            with self._lock:
                self._failures[label] = self.attempt.concurrent_tasks()
        return found.result()

    def _caught_failures(self) -> Mapping[str, Any] | None:
        """The note for failures that the handler has caught, made before its next other call.

        Concurrent asyncio tasks have not caught the failure: it was not raised in them.
        """
        if not self._failures:
            return None
        lineage = self.attempt.task_ancestry()
        with self._lock:
            names = [label for label, beside in self._failures.items() if not any(one in beside for one in lineage)]
            for label in names:
                del self._failures[label]
        return {"names": names, "note": CAUGHT_NOTE} if names else None

    def current_step(self) -> StepScope | None:
        """The step that the current code is in.

        Raises what ends the handler, and PermanentError in a transaction: another transaction would write the call.
        """
        self.attempt.check(self.runtime.monotonic())
        scope = current_scope.get()
        if scope is None or scope.attempt is not self.attempt:
            return None
        if scope.transaction:
            raise PermanentError("not inside of ctx.transaction(): use its connection there, and the context before it")
        return scope

    def before_transaction(self) -> StepScope | None:
        """The step in which a transaction begins; None: the handler's own. Raises PermanentError."""
        scope = self.current_step()
        if scope is not None and scope.recorded:
            raise PermanentError(f"step {scope.name!r} has had its transaction: one for each step")
        if self.attempt.handler_done:
            raise PermanentError("the handler has ended: a hook has no transaction")
        caught = self._caught_failures()
        if caught is not None:
            self.runtime.request(self.attempt, "note", caught)
        return scope

    def _record_name(self, name: str, type_: CheckpointType) -> tuple[str, int]:
        with self._lock:
            return self.replay.visit(name, type_)

    def _recorded(self, label: str, type_: CheckpointType) -> Steps[Recorded | None]:
        """The checkpoint under a name, or None."""
        found = (yield from self.read_recorded()).get(label)
        if found is None or found.type is type_:
            return found
        text = f"{label!r} is recorded as {found.type.label}, and is now {type_.label}"
        self._mismatch(f"{text}: done anew")
        self._notes[label] = f"was {found.type.label}"
        return None

    def read_recorded(self) -> Steps[Mapping[str, Recorded]]:
        """The checkpoints of earlier attempts, read once."""
        if self.replay.recorded is None:
            if self.attempt.claimed.claim == 1:
                self.replay.recorded = {}  # the first claim
            else:
                loaded = yield Read("recorded", {})
                if loaded is None:
                    self._raise_lost()
                self.replay.recorded = {name: Recorded(CheckpointType(type_), *rest) for name, type_, *rest in loaded}
        return self.replay.recorded

    def _note(self, label: str) -> str | None:
        return self._notes.get(label)

    def _request(self, what: str, **args: Any) -> Steps[dict[str, Any]]:
        answer: dict[str, Any] = yield RequestEffect(what, args)
        self.apply_reply(answer)
        return answer

    def apply_reply(self, answer: Mapping[str, Any]) -> None:
        """Raise what the reply carries: LeaseLost, Cancelled, or an error."""
        if not answer["held"]:
            self._raise_lost()
        if "error" in answer:
            raise revived(answer["error"])
        if answer.get("cancelled"):
            self.attempt.cancelled = True
        self.attempt.check(self.runtime.monotonic())

    def _raise_lost(self) -> NoReturn:
        self.attempt.lost = self.attempt.loss_delivered = True
        raise LeaseLost(f"task {self.attempt.claimed.id} is no longer held by this worker; nothing it does is recorded")

    def inside(self, name: str) -> AbstractContextManager[None]:
        """A span around a part of the handler; none if the attempt is not traced."""
        trace = self.attempt.trace
        return nullcontext() if trace is None else trace.inside(name)

    def _event(self, name: str, **attributes: Any) -> None:
        """An event on the attempt's span, if it is traced."""
        if self.attempt.trace is not None:
            self.attempt.trace.event(name, **attributes)

    @contextmanager
    def _in_scope(self, scope: StepScope) -> Iterator[None]:
        token = current_scope.set(scope)
        try:
            yield
        finally:
            current_scope.reset(token)

    # at the end

    def finish(self) -> list[str]:
        """The recorded names that the handler did not visit, for :meth:`note_unvisited`.

        Raises DeterminismError if there are any and the kind is strict.
        """
        unvisited = self.replay.unvisited()
        if unvisited:
            self._mismatch(f"recorded, but never met by the handler: {listed(unvisited, 20)}")
        return unvisited

    def note_unvisited(self, unvisited: list[str]) -> None:
        """Note beside these checkpoints that the handler did not visit them."""
        if unvisited:
            args = {"names": unvisited, "note": "not met by the attempt that succeeded"}
            self.runtime.request(self.attempt, "note", args)

    def _mismatch(self, text: str) -> None:
        """Warn that the handler does not match its checkpoints. Raises DeterminismError if strict."""
        if self.attempt.kind.options.determinism == "strict":
            raise DeterminismError(f"{text}; {self.replay.sequences()}")
        self._warn(f"the handler does not fit what is recorded: {text}")

    def _warn(self, text: str) -> None:
        """Log a warning, and add it to the attempt's output."""
        c = self.attempt.claimed
        self.attempt.capture(f"{text}\n")
        log.warning(text, extra={"task": c.id, "kind": c.kind})


def result_of(end: Any) -> Any:
    """What a child returned, from its row [JSON text, failure]. Raises its failure."""
    text, failure = end
    if failure is not None:
        raise revived(failure)
    return None if text is None else msgspec.json.decode(text)


def suspend(attempt: Attempt, until: int) -> Suspended:
    """Mark the attempt as suspended, until then at the latest. Returns the error to raise."""
    if attempt.suspended is None or until < attempt.suspended:
        attempt.suspended = until
    return Suspended(f"task {attempt.claimed.id} is suspended")


def step(drive: Callable[[Steps[Any]], Any], durable: Durable, name: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """``ctx.step``: drive a step, or without a function make a decorator. Raises PermanentError."""
    grouped = kwargs.get("durable") == GROUPED
    if grouped:
        del kwargs["durable"]
    if function is not None:
        return drive(durable.step(name, function, args, kwargs, grouped=grouped))
    if args or kwargs:
        raise PermanentError(
            f"a step as a decorator takes its name and durable={GROUPED!r}, not {kwargs or args!r:.80}"
        )
    return _as_decorator(lambda *call: drive(durable.step(*call, grouped=grouped)), name)


def _as_decorator(run: Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any], given: Any) -> Any:
    """``ctx.step("name")`` or ``ctx.step`` as a decorator: each call of the function is a step."""

    def decorate(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return run(name, function, args, kwargs)

        return call

    if callable(given):
        return decorate(given, getattr(given, "__name__", "step"))
    return lambda function: decorate(function, given)


def durable_of(attempt: Attempt, runtime: Runtime) -> Durable:
    """The durable calls of an attempt, made when first needed."""
    found = attempt.durable
    if found is None:
        found = attempt.durable = Durable(attempt, runtime)
    assert isinstance(found, Durable)
    return found
