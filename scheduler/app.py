"""Scheduler, the facade that a program holds: the builder and, once started, an engine."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, overload

from scheduler import ports
from scheduler.build import running
from scheduler.client.analysis import AnalysisOperations
from scheduler.client.async_tasks import AsyncTaskOperations
from scheduler.client.audit import AuditOperations
from scheduler.client.batch import Batch, RecurringGraph
from scheduler.client.builder import SpecFactory, TaskBuilder, make_builder
from scheduler.client.completions import EndOperations, Subscription
from scheduler.client.publishing import MessageOperations, PublishOperations
from scheduler.client.queues import PauseOperations, QueueOperations
from scheduler.client.stats import StatsOperations
from scheduler.client.submitter import TaskSubmitter
from scheduler.client.threads import CallThreads, in_thread
from scheduler.client.upkeep import UpkeepOperations
from scheduler.engine.interrupted import end_at_interrupt
from scheduler.engine.options import EngineOptions, ProcessOptions
from scheduler.errors import ConfigError
from scheduler.forking import after_fork, leave_to_parent
from scheduler.model.defaults import (
    DRAIN,
    IN_TURN,
    LEASE,
    MISFIRE_GRACE,
    NO_SLOT,
    POOL_SLOTS,
    PROCESS_GRACE,
    RETENTION,
    SHORT_FIRST,
    UNMOVED_AFTER,
)
from scheduler.model.limits import parse_size
from scheduler.model.names import is_name
from scheduler.model.outcome import DeadLetter
from scheduler.model.registry import Registry
from scheduler.model.running import current_attempt
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.task import Task, TaskFunction
from scheduler.model.times import LONGEST, SECOND, span_us
from scheduler.model.typed import R, Runs, RunsAsync
from scheduler.operations.desk import Desk
from scheduler.ports import Clock, SystemClock
from scheduler.store.db.after_commit import notify_after_commit
from scheduler.store.db.database import Database
from scheduler.store.db.notifier import Notifier, make_notifier
from scheduler.system.processes import cpus
from scheduler.telemetry.traffic import Traffic

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.client.submitter import AnyConnection
    from scheduler.config.model import Otel
    from scheduler.engine.engine import Engine
    from scheduler.engine.placed import PlacedClaim, PlacedEngine
    from scheduler.telemetry.metrics import Family
    from scheduler.telemetry.otel import Tracing

P = ParamSpec("P")


class Scheduler(
    AsyncTaskOperations,
    AuditOperations,
    EndOperations,
    MessageOperations,
    PauseOperations,
    PublishOperations,
    QueueOperations,
    StatsOperations,
    UpkeepOperations,
    AnalysisOperations,
):
    """Schedules tasks, and runs them between :meth:`start` and :meth:`stop`. No I/O before first use.

    ``url``: SQLAlchemy URL of a SQLite file or a PostgreSQL database. ``state``: the application's own object,
    ``ctx.state`` in handlers. ``settings``: sections of the configuration for the built-in tasks. ``pools``:
    (thread slots, async slots) by name. ``lease``, ``drain``, ``misfire_grace``: seconds. ``default_timeout``:
    seconds that an attempt of a task without a timeout may take, 0: for ever. ``unmoved_after``: seconds after which an
    attempt without a timeout or a heartbeat that does not move is named as a problem, 0: never. ``graphs``:
    "short-first" starts tasks of short graphs before those of long ones, in the queues ``graphs_in``.
    ``retention``: seconds by success, failed, outcomes, events, results, keys, audit, stats; and by dead, cancelled,
    skipped, which stay as long as failed where they are not given. ``rollups``: keep the numbers of :meth:`stats`.
    ``notify``: wake idle workers of other processes at once; without it they poll, once a second.
    ``metrics``: keep this worker's own metrics, for Prometheus or OpenTelemetry. ``otel``: trace tasks with
    OpenTelemetry, with these settings of ``[otel]`` (endpoint, ratio, parent, service, slow, settle, logs, metrics);
    None: do not.
    ``before_schedule(builder)`` is called before anything is stored, ``around_run(ctx)`` must return a context
    manager that surrounds each run, ``on_dead_letter(letter)`` is called, once and after the commit, for each task
    that failed for good while this process ran it.

    Tasks with ``isolation="process"`` and ``ctx.cpu`` run in up to ``processes`` child processes (None: as many as
    cores), started when first needed; each calls ``child_state`` ("module:function") once for its ``ctx.state``. A
    handler to be ended has ``process_grace`` seconds from SIGTERM to SIGKILL. A child is replaced after
    ``recycle_tasks`` attempts, or once it has more than ``recycle_memory`` (bytes, or a text such as "512M"); 0: never.

    ``any_executor``: run tasks that name an executor, too, for tests and for development without the engine.

    Raises ConfigError.
    """

    def __init__(
        self,
        url: str = "sqlite:///schedd.db",
        *,
        state: Any = None,
        settings: dict[str, Any] | None = None,
        queues: Iterable[str] = ("*",),
        pools: Mapping[str, tuple[int, int]] | None = None,
        lease: float = LEASE,
        drain: float = DRAIN,
        max_concurrent_tasks: int = 0,
        default_timeout: float = 0.0,
        unmoved_after: float = UNMOVED_AFTER,
        graphs: str = IN_TURN,
        graphs_in: Iterable[str] = ("*",),
        timezone: str = "UTC",
        misfire_grace: float = MISFIRE_GRACE,
        retention: Mapping[str, float] | None = None,
        auto_migrate: bool | None = None,
        notify: bool = True,
        log_attempts: str = "notable",
        rollups: bool = True,
        metrics: bool = False,
        otel: Otel | Mapping[str, Any] | None = None,
        capture_root: bool = False,
        processes: int | None = None,
        process_grace: float = PROCESS_GRACE,
        recycle_tasks: int = 0,
        recycle_memory: int | str = 0,
        child_state: str | None = None,
        before_schedule: Callable[[Any], Any] | None = None,
        around_run: Callable[[Any], AbstractContextManager[Any]] | None = None,
        on_dead_letter: Callable[[DeadLetter], Any] | None = None,
        any_executor: bool = False,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if log_attempts not in ("notable", "all"):
            raise ConfigError(f"log_attempts must be notable or all, not {log_attempts!r}")
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.database = Database(url, self.clock, auto_migrate=auto_migrate, notify=notify)
        self.registry = Registry()
        self.desk = Desk(self.database, self._wake, self.registry)
        self.threads = CallThreads()
        self.settings = settings if settings is not None else {}
        self.state = state
        self.traffic = Traffic()
        self._drain = _seconds(drain, "drain")
        self._rng = rng
        self._around_run = around_run
        self._on_dead_letter = _hook(on_dead_letter)
        self._otel = _otel(otel)
        self._options = EngineOptions(
            queues=_queues(queues),
            pools=_pools(pools or {}),
            max_concurrent=_whole(max_concurrent_tasks, "max_concurrent_tasks", 0),
            lease=_positive(lease, "lease"),
            default_timeout=round(_seconds(default_timeout, "default_timeout") * SECOND),
            unmoved_after=_seconds(unmoved_after, "unmoved_after"),
            misfire_grace=_positive(misfire_grace, "misfire_grace", 1),
            retention=_retention(retention or {}),
            log_attempts=log_attempts,
            capture_root=capture_root,
            rollups=bool(rollups),
            metrics=bool(metrics) or (self._otel is not None and self._otel.metrics),
            processes=_processes(processes, process_grace, recycle_tasks, recycle_memory, child_state),
            any_executor=bool(any_executor),
            short_first=_short_first(graphs, graphs_in),
        )
        self._tracing: Tracing | None = None
        self._caller = TaskSubmitter(
            self.database,
            self.registry,
            self.threads,
            self._notify,
            self._used_notifier,
            self._notify_after_commit,
            self._start_here,
            timezone,
            before_schedule,
            None if self._otel is None else self._make_tracing,
        )
        self._engine: Engine | None = None
        self._engine_maker: Callable[..., Engine] | None = None
        self._notifier: Notifier | None = None
        self._subscriptions: list[Subscription] = []
        self._lifecycle = threading.RLock()
        self._run_inline: Callable[[], None] | None = None  # what tests have run after each change of the store
        self._forked = False  # since it was last used
        after_fork(self, Scheduler._on_fork)

    def _on_fork(self) -> None:
        self._forked = True

    @classmethod
    def from_config(cls, path: str | None = None) -> Self:
        """Make a scheduler from a configuration file, with its task modules registered. Raises ConfigError."""
        from scheduler.config.load import load
        from scheduler.config.task_modules import load_modules, make_scheduler

        config = load(path)
        made = make_scheduler(config, cls)
        made.known_sinks = frozenset(config.sinks)
        load_modules(config, made)
        return made

    @classmethod
    def for_testing(cls, clock: Clock | None = None, **options: Any) -> Self:
        """Make a scheduler on a SQLite file in a new temporary directory, with a clock that only a test moves.

        ``inline``: tasks that are due run within the call that stores them, as within ``testing.inline(jobs)``;
        ``raise_errors``: their handlers' errors come out of it. Takes all other options, and ``url``.
        """
        from scheduler.testing.draining import make_for_testing

        return make_for_testing(cls, clock, options)

    # registering and scheduling

    def register(
        self,
        source: type[Task] | TaskFunction[..., Any],
        kind: str | None = None,
        build: Callable[[int, str], Any] | None = None,
    ) -> None:
        """Register a task type. Registering the same type twice is harmless.

        ``kind``: another name than its own; ``build(id, payload)``: makes the instance of a stored payload. Raises
        ConfigError, also if another type has the name.
        """
        self.registry.add(source, kind, build, runs=self._engine is not None)
        if isinstance(source, TaskFunction):
            source.registered(self)
        if self._engine is not None:
            self._engine.wake()

    @overload
    def task(self, task: RunsAsync[R], /) -> TaskBuilder[R]: ...
    @overload
    def task(self, task: Runs[R], /) -> TaskBuilder[R]: ...
    @overload
    def task(self, task: Task, /) -> TaskBuilder: ...
    @overload
    def task(self, task: str, payload: Mapping[str, Any], /) -> TaskBuilder: ...
    @overload
    def task(
        self, task: TaskFunction[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskBuilder[R]: ...
    @overload
    def task(self, task: TaskFunction[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskBuilder[R]: ...
    def task(self, task: Any, /, *args: Any, **kwargs: Any) -> TaskBuilder[Any]:
        """Begin to schedule a Task instance, a call of a @task function, or a task of a kind by its name.

        Raises UnregisteredKindError, PayloadError.
        """
        return make_builder(self._caller, None, task, args, kwargs)

    def submit(self, kind: str, payload: Mapping[str, Any]) -> TaskId[Any]:
        """Store a task of a kind by its name, without its handler: ``jobs.submit("SendInvoice", {"order": 42})``.

        The payload is checked against the schema that workers have published, unless the kind is registered here.
        ``jobs.task(kind, payload)`` begins the same task, for keys, times and the like. Raises UnregisteredKindError,
        PayloadError.
        """
        return self.task(kind, payload).schedule()

    submit_async = in_thread(submit)

    def batch(
        self,
        correlation: str | None = None,
        connection: AnyConnection | None = None,
    ) -> Batch:
        """Store many tasks at once, all or none: ``with jobs.batch() as batch: batch.task(...)``.

        ``async with`` stores them without blocking the event loop, and takes an AsyncSession or AsyncConnection.
        """
        return Batch(self._caller, correlation, connection)

    def recurring(self, name: str) -> RecurringGraph:
        """Register several tasks that recur as one: ``with jobs.recurring("nightly").daily_at(2, 30) as dag: ...``.

        Raises PayloadError for a name that is none.
        """
        return RecurringGraph(self._caller, name)

    def starting(self) -> AbstractContextManager[None]:
        """Surround a program's ``setup()``: if it fails, the next call may register other recurrences."""
        return self._caller.starting()

    @property
    def submitter(self) -> TaskSubmitter:
        """The part that stores tasks: for the parts of schedd that are made of a Scheduler."""
        return self._caller

    def _forget_schedule(self, name: str) -> None:
        self._caller.forget_schedule(name)

    def _notify(self, *, told: bool = False) -> None:
        """Wake our own engine, and those of other processes unless they were ``told`` already."""
        if not told:
            self._notify_workers()
        elif self._engine is not None:
            self._engine.wake()
        if self._run_inline is not None:
            self._run_inline()

    def _notify_after_commit(self, own: sa.Connection) -> None:
        """The same once the caller's own transaction has committed; tests then run nothing before their next call."""
        notify_after_commit(own, self._notify_workers, others=self.database.notifies)

    def _notify_workers(self) -> None:
        notifier = self._used_notifier()
        engine = self._engine
        if engine is not None:
            engine.wake()
        notifier.notify()

    def _used_notifier(self) -> Notifier:
        """The engine's notifier, else one of our own."""
        if self._forked:
            self._leave_to_parent()
        engine = self._engine
        if engine is not None:
            return engine.notifier
        return self._notifier or self._own_notifier()

    def _own_notifier(self) -> Notifier:
        with self._lifecycle:
            if self._notifier is None:
                self._notifier = make_notifier(self.database)
            return self._notifier

    def _start_here(self, spec: TaskSpec) -> TaskId | None:
        """Store a task as one that our own engine starts at once, if that has a slot for it; else store nothing."""
        if self._forked:
            self._leave_to_parent()
        engine = self._engine
        return None if engine is None else engine.start_here(spec)

    def _wake(self) -> None:
        """Let our own engine see at once what is paused or set, and wake those of other processes."""
        if self._engine is not None:
            self._engine.look_soon()
        self._notify()

    def _leave_to_parent(self) -> None:
        """After a fork, forget the engine, its thread and its attempts, and the notifier: they are the parent's."""
        if self._forked:
            self._lifecycle = threading.RLock()  # another thread may have held it in the parent
            leave_to_parent(self._engine, self._notifier)
            self._engine, self._notifier = None, None
            self._subscriptions = []
            self._forked = False

    @property
    def _counts(self) -> bool:
        return self._options.rollups

    @property
    def _kept(self) -> Mapping[str, float]:
        return self._options.retention

    def _write_own_numbers(self) -> None:
        """Write what tests have drained: nothing else does between two renewals of the lease."""
        engine = self._engine
        if engine is not None and engine.inline:
            engine.write_rollups()

    # running

    @property
    def engine(self) -> Engine:
        """The engine, once started. Raises ConfigError before."""
        if self._engine is None:
            raise ConfigError("the scheduler has not been started")
        return self._engine

    def metrics(self) -> list[Family]:
        """The metrics of this process's worker, for a collector; none while it does not run, or without ``metrics``."""
        engine = self._engine
        return [] if engine is None or engine.metrics is None else engine.metrics.snapshot()

    @property
    def on_dead_letter(self) -> Callable[[DeadLetter], Any] | None:
        """The callback for dead letters; a task module's ``setup(scheduler)`` may set it. Raises ConfigError."""
        return self._on_dead_letter

    @on_dead_letter.setter
    def on_dead_letter(self, hook: Callable[[DeadLetter], Any] | None) -> None:
        self._on_dead_letter = _hook(hook)
        if self._engine is not None:
            self._engine.engine_state.dead_letter_hook.hook = self._on_dead_letter

    @property
    def around_run(self) -> Callable[[Any], AbstractContextManager[Any]] | None:
        """The context manager around each run. A module's ``setup(scheduler)`` may set it, before the start."""
        return self._around_run

    @around_run.setter
    def around_run(self, around: Callable[[Any], AbstractContextManager[Any]] | None) -> None:
        self._around_run = around

    def _make_tracing(self) -> Tracing:
        """What traces tasks. Made when first needed, so that the program may set its tracer provider before.

        Raises ConfigError.
        """
        with self._lifecycle:
            if self._tracing is None:
                assert self._otel is not None
                from scheduler.telemetry.tracing import make_tracing

                self._tracing = make_tracing(self._otel, self.database.now, self.database.url.host)
            return self._tracing

    def _flush_traces(self) -> None:
        """Export what waits; a receiver that hangs holds up no stop for long."""
        if self._tracing is not None:
            self._tracing.flush()

    def _make_engine(self, make: Callable[..., Engine] | None = None, *, inline: bool = False) -> Engine:
        from scheduler.engine.engine import Engine

        engine = (Engine if make is None else make)(
            self.database,
            self.registry,
            self._options._replace(any_executor=True) if inline else self._options,  # drain() runs everything
            state=self.state,
            settings=self.settings,
            around_run=self._around_run,
            on_dead_letter=self._on_dead_letter,
            drafts=SpecFactory(self._caller),
            tracing=None if self._otel is None else self._make_tracing(),
            rng=self._rng,
            inline=inline,
            version=running(),
        )
        engine.engine_state.traffic = self.traffic
        if self._tracing is not None and engine.metrics is not None:
            self._tracing.metrics.read = engine.metrics.snapshot
        return engine

    def start(self) -> None:
        """Start to run tasks in this process. Does nothing if it is running.

        Raises StoreUnavailableError if the database cannot be opened, and ConfigError.
        """
        self._leave_to_parent()
        if ports.IN_CHILD:
            raise ConfigError(
                "a child process does not start a Scheduler: in the program that does, "
                'put what is to run only once below  if __name__ == "__main__":'
            )
        with self._lifecycle:
            if self._engine is not None and self._engine.is_running() and not self._engine.draining:
                return  # an engine that drains still runs its last handlers, beside the new one
            self.registry.check_isolation()
            engine = self._make_engine(self._engine_maker)
            engine.start()
            self._engine = engine

    def be_worker_of(self, executor: str, job: str, make: Callable[..., Engine]) -> None:
        """Be the worker that an executor started as this job: :meth:`start` makes the engine by ``make``."""
        self._options = self._options._replace(executor=executor, job=job)
        self._engine_maker = make

    def start_job(self, claim: PlacedClaim, make: Callable[..., Engine] | None = None, **options: Any) -> PlacedEngine:
        """Run one claim that an executor placed, in the job's own process. Raises StoreUnavailableError.

        ``make``: the engine's class, if it has no database; ``options``: of the engine, as a gateway gives them.
        """
        from scheduler.engine.placed import PlacedEngine, options_of_job

        with self._lifecycle:
            self._options = options_of_job(self._options)._replace(**options)
            engine = self._make_engine(PlacedEngine if make is None else make)
            assert isinstance(engine, PlacedEngine)
            engine.claim = claim
            self._engine = engine
            engine.start()
        return engine

    def reconfigure(self, *, pools: Mapping[str, tuple[int, int]], max_concurrent_tasks: int = 0) -> None:
        """Have these slots, (thread slots, async slots) by pool, from now on, and hold at most so many tasks (0: no
        bound). Running tasks go on. Live settings hold over it. Raises ConfigError.
        """
        given = _pools(pools)
        most = _whole(max_concurrent_tasks, "max_concurrent_tasks", 0)
        self._options = self._options._replace(pools=given, max_concurrent=most)
        if self._engine is not None:
            self._engine.reconfigure(given, most)

    def stop(self, drain: float | None = None) -> list[int]:
        """Stop: claim nothing more and wait up to ``drain`` seconds for what runs.

        Returns the ids still running then. Their handlers cannot be ended from outside, so the engine renews their
        lease until they end. A handler that stops its own Scheduler does not wait: it is one of these.
        """
        self._leave_to_parent()
        if current_attempt.get() is not None:
            drain = 0.0
        with self._lifecycle:
            engine = self._engine
            if engine is None:
                return []
            engine.drain()
            idle = engine.wait_idle(self._drain if drain is None else drain)
            if idle:
                engine.stop(hand_back_running=False)
                self._engine = None
                self.database.settle()
                self._flush_traces()
                return []
            left = engine.running_ids()
            threading.Thread(target=self._stop_later, args=(engine,), name="schedd-stop", daemon=True).start()
            return left

    def _stop_later(self, engine: Engine) -> None:
        while engine.is_running() and not engine.wait_idle(3600.0):
            pass
        with self._lifecycle:
            engine.stop(hand_back_running=False)
            if self._engine is engine:
                self._engine = None
                self.database.settle()
            self._flush_traces()

    def stop_now(self) -> list[int]:
        """Stop at once, for a process that is about to end.

        The last write releases the running tasks, due 2 s later, without using an attempt. Returns the ids of the
        released tasks: not of those that ended meanwhile, or were cancelled.

        Raises StoreUnavailableError if the store cannot be written to.
        """
        self._leave_to_parent()
        with self._lifecycle:
            engine, self._engine = self._engine, None
            if engine is None:
                return []
            engine.drain()
            trouble = engine.stop(hand_back_running=True)
            self.database.settle()
            self._flush_traces()
            if trouble is not None:
                raise trouble
            return engine.handed_back

    def is_running(self) -> bool:
        """Whether this process runs tasks."""
        self._leave_to_parent()
        return self._engine is not None and self._engine.is_running()

    def close(self) -> None:
        """Stop, and close the connections; the end of ``with jobs:`` does the same. A later use opens them again."""
        runs = self._engine is not None
        self.stop()
        self._close_subscriptions()
        if not runs:  # else the stop has done it
            self._flush_traces()
        self.threads.close()
        with self._lifecycle:
            if self._notifier is not None:
                self._notifier.close()
                self._notifier = None
            self.database.settle()

    def __enter__(self) -> Self:
        self.start()
        return self

    async def __aenter__(self) -> Self:
        """``async with jobs:`` starts and closes as ``with jobs:`` does, without blocking the event loop."""
        await self.threads.call(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        # To its end though the caller is cancelled; in a thread of the loop's, as close() ends those of the calls.
        await asyncio.shield(asyncio.to_thread(self.close))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            end_at_interrupt(error, self._engine, self._drain, self.close, self.stop_now)
        else:
            self.close()


def _hook(given: Callable[[DeadLetter], Any] | None) -> Callable[[DeadLetter], Any] | None:
    if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
        raise ConfigError(f"on_dead_letter must be a plain function of the dead letter, not {given!r}")
    return given


def _otel(given: Otel | Mapping[str, Any] | None) -> Otel | None:
    """The settings of ``[otel]``. Raises ConfigError."""
    if given is None:
        return None
    from scheduler.config.scheduler_options import otel_section

    return otel_section(given)


def _processes(
    count: int | None, grace: float, recycle_tasks: int, recycle_memory: int | str, state: str | None
) -> ProcessOptions:
    if count is None:
        count = cpus()
    _whole(count, "processes", 1)
    _whole(recycle_tasks, "recycle_tasks", 0)
    if state is not None and (not isinstance(state, str) or ":" not in state):
        raise ConfigError(f'child_state must be "module:function", not {state!r}')
    memory = parse_size(recycle_memory, "recycle_memory")
    return ProcessOptions(count, _positive(grace, "process_grace"), recycle_tasks, memory, state)


def _short_first(graphs: str, queues: Iterable[str]) -> tuple[str, ...]:
    if graphs not in (IN_TURN, SHORT_FIRST):
        raise ConfigError(f"graphs must be {IN_TURN} or {SHORT_FIRST}, not {graphs!r:.80}")
    named = _queues(queues, "graphs_in")
    return named if graphs == SHORT_FIRST else ()


def _queues(given: Iterable[str], what: str = "queues") -> tuple[str, ...]:
    queues = () if isinstance(given, str) else tuple(given)  # a text is iterable, too: each letter would be a queue
    if not queues or not all(isinstance(name, str) and (name == "*" or is_name(name)) for name in queues):
        raise ConfigError(f'{what} must be a list of names, or ["*"] for all, not {given!r:.80}')
    return queues


def _whole(value: int, what: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{what} must be a whole number of at least {least}, not {value!r}")
    return value


def _seconds(value: float, what: str) -> float:
    return span_us(value, what) / SECOND


def _positive(value: float, what: str, least: float = 0) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (0 < value <= LONGEST / SECOND and value >= least):
        bound = f"of at least {least:g}" if least else "above 0"
        raise ConfigError(f"{what} must be a number of seconds {bound}, not {value!r}")
    return float(value)


def _retention(given: Mapping[str, float]) -> dict[str, float]:
    kept = dict(RETENTION)
    known = (*RETENTION, "dead", "cancelled", "skipped")
    for name, seconds in given.items():
        if name not in known:
            raise ConfigError(f"there is no retention of {name!r}; there are {', '.join(known)}")
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds <= 10**10:
            raise ConfigError(f"retention of {name} must be a number of seconds from 0, not {seconds!r}")
        kept[name] = float(seconds)
    return kept


def _pools(given: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    pools = dict(POOL_SLOTS)
    for name, sizes in given.items():
        if name not in pools:
            raise ConfigError(f"there is no pool {name!r}; there are {', '.join(pools)}")
        if not isinstance(sizes, Sequence) or len(sizes) != 2 or any(not isinstance(n, int) or n < 0 for n in sizes):
            raise ConfigError(f"pool {name} must be (thread slots, async slots), not {sizes!r}")
        pools[name] = (sizes[0], sizes[1])
    if not any(map(any, pools.values())):
        raise ConfigError(NO_SLOT)
    return pools
