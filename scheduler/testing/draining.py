"""Running due tasks in the test's own thread: all of them, those of a queue or a kind, or one."""

from __future__ import annotations

import math
import random
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from scheduler.errors import ConfigError, Retry, TaskFailedError
from scheduler.model.lanes import kind_of, rank_of
from scheduler.model.running import current_attempt
from scheduler.ports import Clock
from scheduler.testing.clock import FakeClock

if TYPE_CHECKING:
    from scheduler.app import Scheduler
    from scheduler.client.info import TaskInfo
    from scheduler.engine.attempt.attempt import Attempt
    from scheduler.engine.engine import Engine
    from scheduler.engine.slots import InlineSlots
    from scheduler.model.outcome import Outcome
    from scheduler.store.tasks.claim import LaneHead

S = TypeVar("S", bound="Scheduler")
MOST = 1_000_000  # attempts of one drain


class Drain(Protocol):
    """pytest's fixture ``schedd_drain``: :func:`drain` of the fixture ``schedd``."""

    def __call__(
        self,
        limit: int = MOST,
        *,
        queue: str | None = None,
        kind: Any = None,
        task: int | None = None,
        raise_errors: bool = False,
    ) -> int: ...


def make_for_testing(cls: type[S], clock: Clock | None, options: dict[str, Any]) -> S:
    """Make the scheduler of ``Scheduler.for_testing()``; accepts ``url`` and every other option."""
    runs_inline, raises = options.pop("inline", False), options.pop("raise_errors", False)
    if "url" in options:
        url = options.pop("url")
        directory = None
    else:
        directory = tempfile.mkdtemp(prefix="schedd-test-")
        url = f"sqlite:///{directory}/jobs.db"
    options.setdefault("rng", random.Random(0))
    made = cls(url, clock=clock if clock is not None else FakeClock(), **options)
    if directory is not None:
        weakref.finalize(made, shutil.rmtree, directory, ignore_errors=True)
    if runs_inline:
        made._run_inline = _Inline(made, raises)
    elif raises:
        raise ConfigError("raise_errors is for inline=True; else drain(jobs, raise_errors=True) takes it")
    return made


def engine_of(jobs: Scheduler) -> Engine:
    """The inline engine of a scheduler under test: one worker, made on first use."""
    engine = jobs._engine
    if engine is None:
        engine = jobs._engine = jobs._make_engine(inline=True)
        jobs.database.open()
    if not engine.inline:
        raise ConfigError("drain() needs a scheduler that was not started: it runs the tasks itself")
    return engine


def drain(
    jobs: Scheduler,
    limit: int = MOST,
    *,
    queue: str | None = None,
    kind: Any = None,
    task: int | None = None,
    raise_errors: bool = False,
) -> int:
    """Run every task that is due, the highest priority first, in this thread. Returns how many attempts ran.

    ``queue``, ``kind`` (a name, a Task class or a @task function): only tasks of these. ``task``: only this one, by its
    id. ``raise_errors``: raise what the first failing handler raised, with its traceback, once its attempt is recorded;
    a handler's own Retry and Snooze are no errors.

    Raises RuntimeError after ``limit`` attempts: a task schedules itself again without end; ConfigError in a handler of
    this Scheduler; UnknownTaskError, UnregisteredKindError.
    """
    running = current_attempt.get()
    if running is not None and running.is_by(jobs.database):
        raise ConfigError("a handler is run by drain(), and calls it itself: use ctx.await_task(id)")
    if task is not None:
        if queue is not None or kind is not None:
            raise ConfigError("drain() takes a task, or a queue and a kind, not both")
        jobs.get_task(task)  # which says that there is none
    engine = engine_of(jobs)
    name = kind if kind is None or isinstance(kind, str) else jobs.registry.of(kind).name
    if name is not None:
        jobs.registry.named(name)
    errors = _Errors(engine) if raise_errors else None
    with engine.capture, errors or nullcontext(), _only(engine, queue, name, task), _keeping(engine) as keep:
        return _drain(engine, limit, task, errors, keep)


def _drain(engine: Engine, limit: int, task: int | None, errors: _Errors | None, keep: Callable[[], object]) -> int:
    ran = quiet = 0
    while quiet < 2:
        engine.wake()
        engine.step()
        keep()
        while engine.dispatch.lanes.unfinished:
            engine.step()
        if task is not None:
            engine.claim_task(task)
        before, turn = ran, None
        while (slots := _first(engine)) is not None and turn in (None, slots):
            turn = slots  # once it is empty it claims again, so that no other gets ahead of what it would claim
            slots.run_one()
            ran += 1
            if errors is not None:
                errors.check()
            if ran >= limit:
                raise RuntimeError(f"{limit} attempts ran and more are due; does a task schedule itself for ever?")
        going_on = ran > before or engine.dispatch.has_work() or engine.periodic.has_backlog
        quiet = 0 if going_on else quiet + 1
        if quiet == 1:
            # On a slow machine it may begin its looks behind what was just released, and find that a second later.
            engine.dispatch.lanes.offsets.reset()
    return ran


@contextmanager
def _keeping(engine: Engine) -> Iterator[Callable[[], object]]:
    """From its first call on, the engine keeps what it claims, however long that waits: given back it would lose its
    turn. What had waited for too long before is given back."""
    state = engine.engine_state
    before = state.options

    def keep() -> None:
        state.options = before._replace(give_back=math.inf)

    try:
        yield keep
    finally:
        state.options = before


def _first(engine: Engine) -> InlineSlots | None:
    """The slots whose next attempt has the highest priority, and the highest rank in it. None: nothing waits."""
    waiting = [slots for slots in engine.inline_slots() if slots.waiting]
    return min(waiting, key=_urgency, default=None)


def _urgency(slots: InlineSlots) -> tuple[int, int]:
    claimed = slots.waiting[0].claimed
    return claimed.priority, -rank_of(claimed.lane)


@contextmanager
def _only(engine: Engine, queue: str | None, kind: str | None, task: int | None) -> Iterator[None]:
    """Let the engine claim nothing else by itself: of this queue and kind; with a task, nothing at all."""
    if queue is None and kind is None and task is None:
        yield
        return

    def chosen(head: LaneHead) -> bool:
        return task is None and queue in (None, head.queue) and kind in (None, kind_of(head.lane))

    dispatch = engine.dispatch
    dispatch.planner.chosen = chosen
    dispatch.lanes.forget()
    try:
        yield
    finally:
        dispatch.planner.chosen = None
        dispatch.lanes.forget()
        dispatch.lanes.offsets.reset()


class _Errors:
    """Keeps what the handlers raise while a drain lasts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = engine.engine_state.around_run
        self.last: BaseException | None = None

    def __enter__(self) -> None:
        self._engine.engine_state.around_run = lambda ctx: _Noted(self, self._before and self._before(ctx))

    def __exit__(self, *_: object) -> None:
        self._engine.engine_state.around_run = self._before
        self.last = None

    def check(self) -> None:
        """Raise the error of the attempt that has just ended, if it failed; it is recorded before."""
        attempt, outcome = self._engine.engine_state.outcomes[-1]
        error, self.last = self.last, None
        if outcome.failure is None or isinstance(error, Retry):
            return
        self._engine.dispatch.return_waiting()  # what was claimed with it
        while self._engine.dispatch.has_work():
            self._engine.step_without_claims()
        raise _named(error, attempt, outcome)


def _named(error: BaseException | None, attempt: Attempt, outcome: Outcome) -> BaseException:
    """The handler's error with a note of its task; one of ours where no handler raised it."""
    c, failure = attempt.claimed, outcome.failure
    if error is None or not isinstance(error, Exception):
        return TaskFailedError(c.id, None if failure is None else failure.text)
    error.add_note(f"task {c.id} ({c.kind}), attempt {c.attempt}, is recorded as {outcome.end.name.lower()}")
    return error


class _Noted:
    """Surrounds one run: notes its error, within what surrounds runs anyway."""

    def __init__(self, errors: _Errors, inner: AbstractContextManager[Any] | None) -> None:
        self._errors, self._inner = errors, inner

    def __enter__(self) -> None:
        self._errors.last = None
        if self._inner is not None:
            self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._errors.last = error
        if self._inner is None:
            return None
        try:
            return self._inner.__exit__(kind, error, trace)
        except BaseException as other:
            self._errors.last = other
            raise


@contextmanager
def inline(jobs: Scheduler, *, raise_errors: bool = False) -> Iterator[None]:
    """Within ``with inline(jobs):`` each call that stores tasks runs all that is due before it returns.

    Tasks of later times wait for the clock, and tasks that a handler stores run after it. Tasks stored in the caller's
    own transaction run at the next call after its commit. ``raise_errors``: as for :func:`drain`.
    """
    before, jobs._run_inline = jobs._run_inline, _Inline(jobs, raise_errors)
    try:
        yield
    finally:
        jobs._run_inline = before


class _Inline:
    """Drains a scheduler whenever it has stored something."""

    def __init__(self, jobs: Scheduler, raise_errors: bool) -> None:
        self._jobs = weakref.proxy(jobs)  # which holds this
        self._raises = raise_errors
        self._lock = threading.Lock()
        self._thread = 0  # that drains

    def __call__(self) -> None:
        if self._thread == threading.get_ident():
            return  # a hook's call
        running = current_attempt.get()
        if running is not None and running.is_by(self._jobs.database):
            return  # the drain that runs this handler goes on with it
        with self._lock:
            self._thread = threading.get_ident()
            try:
                drain(self._jobs, raise_errors=self._raises)
            finally:
                self._thread = 0


def assert_scheduled(jobs: Scheduler, kind: str, **payload: Any) -> TaskInfo:
    """Return the newest live task of this kind whose payload has these values.

    Raises AssertionError, which shows the other tasks of the kind.
    """
    found = jobs.list_tasks(kind=kind, limit=1000)
    seen = []
    for record in found:
        if record.state.terminal:
            continue
        values = msgspec.json.decode(record.payload or "null")
        if isinstance(values, dict) and all(values.get(k) == v for k, v in payload.items()):
            return record
        seen.append(values)
    raise AssertionError(f"no {kind} with {payload} is scheduled; there are {seen or 'none'}")
