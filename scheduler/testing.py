"""Tools for tests: a clock that a test moves, a scheduler that runs inline, assertions on tasks."""

from __future__ import annotations

import random
import shutil
import tempfile
import weakref
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.running import current_attempt
from scheduler.model.times import instant_us, span_us
from scheduler.ports import SECOND, Clock

if TYPE_CHECKING:
    from scheduler.app import Scheduler
    from scheduler.client.info import TaskInfo
    from scheduler.engine.engine import Engine

S = TypeVar("S", bound="Scheduler")
_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock that stands still until :meth:`advance`. ``start``: an aware datetime."""

    steps = True

    def __init__(self, start: datetime = _START) -> None:
        self._now = instant_us(start, "start")
        self._mono = 0.0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._mono

    def advance(self, by: float | timedelta) -> None:
        """Move the clock forward by seconds or a timedelta."""
        span = span_us(by, "advance")
        self._now += span
        self._mono += span / SECOND

    def jump(self, by: float | timedelta) -> None:
        """Move the wall clock forward, or back for a negative value; monotonic time stays as it is."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        self._now += round(seconds * SECOND)

    @property
    def datetime(self) -> datetime:
        """The wall time, UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self._now)


def make_for_testing(cls: type[S], clock: Clock | None, options: dict[str, Any]) -> S:
    """Make the scheduler of ``Scheduler.for_testing()``; accepts ``url`` and every other option."""
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


def drain(jobs: Scheduler, limit: int = 1_000_000) -> int:
    """Run every task that is due, one after the other, in this thread. Returns how many attempts ran.

    Raises RuntimeError after ``limit`` attempts: a task schedules itself again without end; ConfigError in a handler of
    this Scheduler.
    """
    running = current_attempt.get()
    if running is not None and running.is_by(jobs.database):
        raise ConfigError("a handler is run by drain(), and calls it itself: use ctx.await_task(id)")
    engine = engine_of(jobs)
    ran = 0
    quiet = 0
    with engine.capture:
        while quiet < 2:
            engine.wake()
            engine.step()
            while engine.dispatch.lanes.unfinished:
                engine.step()
            before = ran
            for slots in engine.inline_slots():
                while slots.run_one():
                    ran += 1
                    if ran >= limit:
                        raise RuntimeError(
                            f"{limit} attempts ran and more are due; does a task schedule itself for ever?"
                        )
            going_on = ran > before or engine.dispatch.has_work() or engine.periodic.has_backlog
            quiet = 0 if going_on else quiet + 1
            if quiet == 1:
                # On a slow machine it may begin its looks behind what was just released, and find that a second later.
                engine.dispatch.lanes.offsets.reset()
    return ran


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
