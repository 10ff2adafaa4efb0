"""Durable execution: what a handler does under a name is recorded, and a later attempt skips it.

Each call is written once, as a generator of what has to be done outside (durable_plan.py); ``drive`` (sync_durable.py)
and ``drive_async`` (async_durable.py) carry that out for threads and for coroutines.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from scheduler.engine.durable_plan import Ask, Block, Call, Load, Plan
from scheduler.errors import DeterminismError, LeaseLost, PermanentError, Suspended
from scheduler.model.checkpoint import (
    CAUGHT,
    ONE,
    OWN,
    Recorded,
    Replay,
    Sort,
    check_event,
    check_name,
    encoded,
    revived,
)
from scheduler.model.spec import TaskId
from scheduler.model.texts import listed
from scheduler.model.times import instant_us, span_us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.engine.attempt import Attempt
    from scheduler.engine.runtime import Drafts, Runtime

T = TypeVar("T")
CHUNK = 100  # children that are stored in one turn
log = logging.getLogger("scheduler.engine")


@dataclass
class Frame:
    """Where in a handler the present code is: in a step, or (``transaction``) in a ``ctx.transaction()``.

    ``recorded``: the step's own transaction has committed its checkpoint, with this ``value`` (JSON).
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


inside: ContextVar[Frame | None] = ContextVar("schedd_frame", default=None)


class Durable:
    """The durable calls of one attempt."""

    def __init__(self, attempt: Attempt, runtime: Runtime) -> None:
        self.attempt = attempt
        self.runtime = runtime
        self.replay = Replay()
        self.blocked: dict[Any, int] = {}  # coroutines that wait (see async_durable.py): until when
        self._lock = threading.Lock()
        self._notes: dict[str, str] = {}
        self._failures: dict[str, Collection[Any]] = {}  # that the handler was given last: see _awaited

    # the calls

    def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan[Any]:
        """Call the function, once and for all: what it returns is recorded."""
        yield from self._enter()
        if not callable(function):
            raise PermanentError(f"step {name!r:.80} needs a function to call, not {function!r:.80}")
        label, seq = self._meet(check_name(name), Sort.STEP)
        found = yield from self._find(label, Sort.STEP)
        if found is not None:
            return found.result()
        started = self.runtime.now()
        frame = Frame(self.attempt, name, label, seq, started, self._note(label))
        with self._in(frame):
            value = yield Call(function, args, kwargs)
        if frame.recorded:
            if value is not None:
                self._say(f"step {name!r}: what it returns is not stored, only its transaction's result")
            return Recorded(Sort.STEP, frame.value).result()
        text = encoded(value, f"the result of step {name!r}")
        yield from self._ask("record", name=label, seq=seq, value=text, started_at=started, note=frame.note)
        return Recorded(Sort.STEP, text).result()  # as a later attempt gets it

    def sleep_for(self, seconds: float | timedelta, name: str | None) -> Plan[None]:
        """Until so long after it first began."""
        span = span_us(seconds, "sleep_for")
        return self._sleep(lambda: self.runtime.now() + span, name)

    def sleep_until(self, when: datetime, name: str | None) -> Plan[None]:
        """Until then; returns at once if that is past."""
        instant = instant_us(when, "sleep_until")
        return self._sleep(lambda: instant, name)

    def _sleep(self, until: Callable[[], int], name: str | None) -> Plan[None]:
        yield from self._enter()
        label, seq = self._meet(OWN + "sleep" if name is None else check_name(name, "a sleep's name"), Sort.SLEEP)
        found = yield from self._find(label, Sort.SLEEP)
        if found is not None:
            end = int(found.result())
        else:
            end = until()
            yield from self._ask("sleep", name=label, seq=seq, until=end, note=self._note(label))
        if end > self.runtime.now():
            yield Block(end)

    def await_event(self, event: str, timeout: float | timedelta | None) -> Plan[Any]:
        """The event's payload, once it is emitted; TimeoutError if that takes longer than ``timeout``."""
        span = None if timeout is None else span_us(timeout, "await_event(timeout=)")
        yield from self._enter(awaits=True)
        label, seq = self._meet(f"{OWN}event:{check_event(event)}", Sort.EVENT)
        found = yield from self._find(label, Sort.EVENT)
        if found is None:
            answer = yield from self._ask(
                "await_event", name=label, seq=seq, event=event, timeout=span, note=self._note(label)
            )
            if "until" in answer:
                yield Block(answer["until"])
            found = Recorded(Sort.EVENT, answer.get("value"), answer.get("failure"))
        return self._awaited(label, found)

    def emit_event(self, event: str, payload: Any) -> Plan[bool]:
        """Emit it; False if somebody else was first."""
        yield from self._enter()
        label, seq = self._meet(f"{OWN}emit:{check_event(event)}", Sort.EMIT)
        found = yield from self._find(label, Sort.EMIT)
        if found is not None:
            return bool(found.result())
        text = encoded(payload, f"the payload of event {event!r}")
        answer = yield from self._ask("emit", name=label, seq=seq, event=event, payload=text, note=self._note(label))
        return bool(Recorded(Sort.EMIT, answer["value"]).result())

    def spawn(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> Plan[TaskId]:
        """Store a task, as this one's child; once, however often this one runs."""
        yield from self._enter()
        draft = self._drafts.draft(task, args, kwargs)
        base = f"{OWN}spawn:{draft.kind}" if name is None else check_name(name, "a child's name")
        label, seq = self._meet(base, Sort.SPAWN)
        ids = yield from self._spawned(label, seq, lambda: [self._spec(draft)], None)
        return ids[0]

    def await_task(self, task_id: int, timeout: float | timedelta | None) -> Plan[Any]:
        """What another task returned, once it has ended; raises what became of it otherwise."""
        span = None if timeout is None else span_us(timeout, "await_task(timeout=)")
        yield from self._enter(awaits=True)
        if not isinstance(task_id, int) or isinstance(task_id, bool) or not 1 <= task_id < 2**63:
            raise PermanentError(f"await_task takes a task's id, not {task_id!r:.80}")
        if task_id == self.attempt.claimed.id:
            raise PermanentError("a task cannot await itself")
        label, seq = self._meet(f"{ONE}{int(task_id)}", Sort.TASK)
        found = yield from self._find(label, Sort.TASK)
        if found is None:
            answer = yield from self._await(label, seq, [int(task_id)], span)
            found = Recorded(Sort.TASK, answer.get("value"), answer.get("failure"))
        return self._awaited(label, found)

    def map(self, kind: Any, items: Iterable[Any], name: str | None) -> Plan[list[Any]]:
        """One child for each item; their results in the items' order, once all have ended."""
        yield from self._enter()
        listed = list(items)
        called = self._drafts.name_of(kind)
        base = f"{OWN}map:{called}" if name is None else check_name(name, "a map's name")
        label, seq = self._meet(base, Sort.TASK)
        ids: list[TaskId] = []
        for start in range(0, len(listed), CHUNK):
            part, place = self._meet(f"{label}/{start}", Sort.SPAWN)
            chunk = listed[start : start + CHUNK]
            ids += yield from self._spawned(part, place, lambda chunk=chunk: self._specs(kind, chunk), label)  # type: ignore[misc]
        if len(ids) != len(listed):
            self._differs(f"{label!r} has {len(ids)} recorded children, and now {len(listed)} items")
        found = yield from self._find(label, Sort.TASK)
        ends = yield from self._ends(label, seq, [int(i) for i in ids], ended=found is not None)
        return [result_of(end) for end in ends]

    def _ends(self, label: str, seq: int, ids: list[int], *, ended: bool) -> Plan[list[Any]]:
        """How these children ended, once all have. ``ended``: it is recorded that they had; some may live again."""
        ends: list[Any] | None = None if ids else []
        stale = False
        while ends is None:
            if stale or not ended:
                yield from self._await(label, seq, ids, None, many=True, stale=stale)
            ends = yield Load("ends", {"ids": ids})
            stale = True
        return ends

    @property
    def _drafts(self) -> Drafts:
        drafts = self.runtime.drafts
        assert drafts is not None, "an engine that runs handlers is given a drafter"
        return drafts

    def _spec(self, draft: Any) -> dict[str, Any]:
        """A child's specification as JSON-able values: it inherits the correlation, and names its cause."""
        spec = draft.finish()
        c = self.attempt.claimed
        if spec.correlation is None:
            spec.correlation = c.correlation if c.correlation is not None else str(c.id)
        if spec.causation is None:
            spec.causation = str(c.id)
        made: dict[str, Any] = msgspec.to_builtins(spec)
        return made

    def _specs(self, kind: Any, items: Iterable[Any]) -> list[dict[str, Any]]:
        return [self._spec(self._drafts.of_item(kind, item)) for item in items]

    def _spawned(
        self, label: str, seq: int, specs: Callable[[], list[dict[str, Any]]], group: str | None
    ) -> Plan[list[TaskId]]:
        found = yield from self._find(label, Sort.SPAWN)
        value = None if found is None else found.value
        if found is None:
            answer = yield from self._ask(
                "spawn", name=label, seq=seq, specs=specs(), group=group, note=self._note(label)
            )
            value = answer["value"]
        return [TaskId(task_id, created) for task_id, created in msgspec.json.decode(value or "[]")]

    def _await(
        self, label: str, seq: int, ids: list[int], span: int | None, *, many: bool = False, stale: bool = False
    ) -> Plan[dict[str, Any]]:
        said = {"items": ids, "timeout": span, "many": many, "stale": stale}
        answer = yield from self._ask("await_tasks", name=label, seq=seq, note=self._note(label), **said)
        if "until" in answer:
            yield Block(answer["until"])
        return answer

    # what they share

    def _enter(self, *, awaits: bool = False) -> Plan[None]:
        frame = self.where()
        if frame is not None and not frame.transaction:
            raise PermanentError("steps cannot be nested: do this before or after the step, not inside of it")
        if self.attempt.over:
            raise PermanentError("the handler has ended: a hook cannot do anything durable with its context")
        caught = None if awaits else self._caught()
        if caught is not None:
            yield Ask("note", caught)

    def _awaited(self, label: str, found: Recorded) -> Any:
        """What an await gives, or raises. A retry by hand forgets the failure unless it is noted as caught."""
        if found.failure is not None:
            with self._lock:
                self._failures[label] = self.attempt.beside()
        return found.result()

    def _caught(self) -> Mapping[str, Any] | None:
        """What to note at the failures that have led here, before something begins that is more than another await.

        What runs beside an await has not heard of its failure.
        """
        if not self._failures:
            return None
        lineage = self.attempt.lineage()
        with self._lock:
            names = [label for label, beside in self._failures.items() if not any(one in beside for one in lineage)]
            for label in names:
                del self._failures[label]
        return {"names": names, "note": CAUGHT} if names else None

    def where(self) -> Frame | None:
        """The step that the present code is in. Raises what should end it, and PermanentError in a transaction: what
        is asked for would be written by another one."""
        self.attempt.check(self.runtime.monotonic())
        frame = inside.get()
        if frame is None or frame.attempt is not self.attempt:
            return None
        if frame.transaction:
            raise PermanentError("not inside of ctx.transaction(): use its connection there, and the context before it")
        return frame

    def before_transaction(self) -> Frame | None:
        """The step in which a transaction is to begin; None: it is the handler's last act. Raises PermanentError."""
        frame = self.where()
        if frame is not None and frame.recorded:
            raise PermanentError(f"step {frame.name!r} has had its transaction: one for each step")
        if self.attempt.over:
            raise PermanentError("the handler has ended: a hook has no transaction")
        caught = self._caught()
        if caught is not None:
            self.runtime.request(self.attempt, "note", caught)
        return frame

    def _meet(self, name: str, sort: Sort) -> tuple[str, int]:
        with self._lock:
            return self.replay.meet(name, sort)

    def _find(self, label: str, sort: Sort) -> Plan[Recorded | None]:
        """What is recorded under a name."""
        found = (yield from self.read_recorded()).get(label)
        if found is None or found.sort is sort:
            return found
        said = f"{label!r} is recorded as {found.sort.label}, and is now {sort.label}"
        self._differs(f"{said}: done anew")
        self._notes[label] = f"was {found.sort.label}"
        return None

    def read_recorded(self) -> Plan[Mapping[str, Recorded]]:
        """What earlier attempts recorded, read once."""
        if self.replay.recorded is None:
            if self.attempt.claimed.claim == 1:
                self.replay.recorded = {}  # nobody was here before
            else:
                loaded = yield Load("recorded", {})
                if loaded is None:
                    self._lost()
                self.replay.recorded = {name: Recorded(Sort(sort), *rest) for name, sort, *rest in loaded}
        return self.replay.recorded

    def _note(self, label: str) -> str | None:
        return self._notes.get(label)

    def _ask(self, what: str, **args: Any) -> Plan[dict[str, Any]]:
        answer: dict[str, Any] = yield Ask(what, args)
        self.settle(answer)
        return answer

    def settle(self, answer: Mapping[str, Any]) -> None:
        """Raise what an answer says should be raised: LeaseLost, Cancelled, an error."""
        if not answer["held"]:
            self._lost()
        if "error" in answer:
            raise revived(answer["error"])
        if answer.get("cancelled"):
            self.attempt.cancelled = True
        self.attempt.check(self.runtime.monotonic())

    def _lost(self) -> None:
        self.attempt.lost = self.attempt.told_lost = True
        raise LeaseLost(f"task {self.attempt.claimed.id} is no longer held by this worker; nothing it does is recorded")

    @contextmanager
    def _in(self, frame: Frame) -> Iterator[None]:
        token = inside.set(frame)
        try:
            yield
        finally:
            inside.reset(token)

    # at the end

    def finish(self) -> list[str]:
        """The handler has come to its end. Returns what is recorded and was never met, for :meth:`note`.

        Raises DeterminismError if there is any and the kind is strict.
        """
        unmet = self.replay.unmet()
        if unmet:
            self._differs(f"recorded, but never met by the handler: {listed(unmet, 20)}")
        return unmet

    def note(self, unmet: list[str]) -> None:
        """Say so of what was not met, beside what is recorded."""
        if unmet:
            said = {"names": unmet, "note": "not met by the attempt that succeeded"}
            self.runtime.request(self.attempt, "note", said)

    def _differs(self, said: str) -> None:
        """What the handler does does not fit what is recorded. Raises DeterminismError if strict."""
        if self.attempt.kind.options.determinism == "strict":
            raise DeterminismError(f"{said}; {self.replay.sequences()}")
        self._say(f"the handler does not fit what is recorded: {said}")

    def _say(self, said: str) -> None:
        """Log a warning, and keep it with the attempt."""
        c = self.attempt.claimed
        self.attempt.capture(f"{said}\n")
        log.warning(said, extra={"task": c.id, "kind": c.kind})


def result_of(end: Any) -> Any:
    """What a child returned, of its row [JSON text, failure]. Raises what became of it otherwise."""
    text, failure = end
    if failure is not None:
        raise revived(failure)
    return None if text is None else msgspec.json.decode(text)


def suspend(attempt: Attempt, until: int) -> Suspended:
    """Note that the attempt is to be suspended, until then at the latest. Returns what to raise."""
    if attempt.suspended is None or until < attempt.suspended:
        attempt.suspended = until
    return Suspended(f"task {attempt.claimed.id} is suspended")


def as_decorator(run: Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any], given: Any) -> Any:
    """``ctx.step("name")`` or ``ctx.step`` as a decorator: each call of the function is a step then."""

    def decorate(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return run(name, function, args, kwargs)

        return call

    if callable(given):
        return decorate(given, getattr(given, "__name__", "step"))
    return lambda function: decorate(function, given)
