"""Batch stores many tasks at once, all or none; RecurringGraph lets several tasks with edges recur as one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, overload

import msgspec

from scheduler.client.builder import TaskBuilder, make_builder, unique_recurs
from scheduler.client.builder_parts import RecurrenceCalls
from scheduler.client.submitter import TaskSubmitter
from scheduler.errors import ConfigError, InvalidScheduleError
from scheduler.model.graph import batch_order
from scheduler.model.names import check_text
from scheduler.model.recurrence import Recurrence
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.task import Task, TaskFunction
from scheduler.model.typed import R, Runs, RunsAsync
from scheduler.store.schedule_runs import GRAPH
from scheduler.store.schedules import ScheduleSpec

if TYPE_CHECKING:
    from scheduler.client.submitter import AnyConnection


P = ParamSpec("P")


MAX_NAME = 200
MAX_TASKS = 1000


class Batch:
    """Stores its tasks together when the ``with`` block ends, or none of them. ``ids`` are known afterwards."""

    def __init__(
        self,
        caller: TaskSubmitter,
        correlation: str | None = None,
        connection: AnyConnection | None = None,
    ) -> None:
        self._caller = caller
        self._correlation = None if correlation is None else check_text(correlation, "correlation")
        self._connection = connection
        self._builders: list[TaskBuilder[Any]] = []
        self._ids: list[TaskId] | None = None

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
        """Make a builder of this batch. Raises UnregisteredKindError, PayloadError."""
        if self._ids is not None:
            raise ConfigError("this batch is stored already; open another one")
        builder = make_builder(self._caller, self, task, args, kwargs)
        if self._correlation is not None:
            builder.correlation(self._correlation)
        self._builders.append(builder)
        return builder

    def schedule_chain(self, builder: TaskBuilder[R], connection: AnyConnection | None) -> TaskId[R]:
        """Raises ConfigError: this batch is no :class:`Chain`."""
        raise ConfigError("this builder belongs to a batch, which stores it at its end; do not schedule() it")

    async def schedule_chain_async(self, builder: TaskBuilder[R], connection: AnyConnection | None) -> TaskId[R]:
        """:meth:`schedule_chain`, awaited."""
        return self.schedule_chain(builder, connection)

    @property
    def ids(self) -> list[TaskId]:
        """The tasks' ids in creation order; ConfigError before the batch is stored."""
        if self._ids is None:
            raise ConfigError("the ids of a batch are there once its with block has ended")
        return self._ids

    def __enter__(self) -> Self:
        if self._ids is not None:
            raise ConfigError("this batch is stored already; open another one")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            specs = self._specs()
            self._ids = self._caller.store(specs, self._connection) if specs else []

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            specs = self._specs()
            self._ids = await self._caller.store_async(specs, self._connection) if specs else []

    def _specs(self) -> list[TaskSpec]:
        positions = {builder: i for i, builder in enumerate(self._builders)}
        return [builder._finished(positions) for builder in self._builders]


class Chain(Batch):
    """The tasks that :meth:`TaskBuilder.then` has made, one after the other: ``schedule()`` of one stores all."""

    def add(self, builder: TaskBuilder[Any]) -> None:
        """Take in the builder that the chain begins with."""
        self._builders.append(builder)

    def schedule_chain(self, builder: TaskBuilder[R], connection: AnyConnection | None) -> TaskId[R]:
        """Store all; the id of this one. Raises ConfigError if that is done."""
        ids = self._ids = self._caller.store(self._once(), connection)
        return ids[self._builders.index(builder)]

    async def schedule_chain_async(self, builder: TaskBuilder[R], connection: AnyConnection | None) -> TaskId[R]:
        ids = self._ids = await self._caller.store_async(self._once(), connection)
        return ids[self._builders.index(builder)]

    def _once(self) -> list[TaskSpec]:
        if self._ids is not None:
            raise ConfigError("this chain is stored already; begin another one")
        return self._specs()


class RecurringGraph(RecurrenceCalls["RecurringGraph"]):
    """A graph of tasks that recurs as one: each fire time stores all of it at once, under one correlation.

    The tasks are named by their ``key()``, else by their kind; a run's tasks have the keys ``NAME@SLOT/TASK``. Used as
    a context manager, it is registered when the ``with`` block ends without an error.
    """

    def __init__(self, caller: TaskSubmitter, name: str) -> None:
        self._caller = caller
        self.name = check_text(name, "the name of a recurring graph", MAX_NAME)
        self._builders: list[TaskBuilder] = []

    def __repr__(self) -> str:
        return f"<recurring graph {self.name!r} of {len(self._builders)}>"

    def _recurring(self, recurrence: Recurrence) -> RecurringGraph:
        self._recurrence = recurrence
        return self

    @overload
    def task(self, task: Task, /) -> TaskBuilder: ...
    @overload
    def task(self, task: TaskFunction[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> TaskBuilder: ...
    def task(self, task: Any, /, *args: Any, **kwargs: Any) -> TaskBuilder:
        """Make a builder of a task of this graph, for ``depend_on`` of others in it.

        Raises UnregisteredKindError, PayloadError.
        """
        builder = make_builder(self._caller, self, task, args, kwargs)
        self._builders.append(builder)
        return builder

    def schedule_chain(self, builder: TaskBuilder[Any], connection: Any) -> Any:
        """Raises ConfigError: the graph stores its tasks."""
        raise ConfigError("this builder belongs to a recurring graph, which is registered whole; do not schedule() it")

    async def schedule_chain_async(self, builder: TaskBuilder[Any], connection: Any) -> Any:
        """:meth:`schedule_chain`, awaited."""
        self.schedule_chain(builder, connection)

    def schedule(self, *, replace: bool = False) -> str:
        """Register the graph, or update the one of the same name; returns the name.

        ``replace``: also in place of a schedule that is none, or of another owner. Raises InvalidScheduleError,
        CycleError, DuplicateScheduleError, StoreUnavailableError.
        """
        self._caller.register_schedule(self._schedule_spec(replace), keyed=True)
        return self.name

    async def schedule_async(self, *, replace: bool = False) -> str:
        """:meth:`schedule` without blocking the event loop."""
        return await asyncio.to_thread(self.schedule, replace=replace)

    def _schedule_spec(self, replace: bool = False) -> ScheduleSpec:
        if self._recurrence is None:
            raise InvalidScheduleError(f"recurring graph {self.name!r} has no recurrence such as daily_at() or every()")
        if not 1 <= len(self._builders) <= MAX_TASKS:
            raise InvalidScheduleError(
                f"recurring graph {self.name!r} has {len(self._builders)} tasks; from 1 to {MAX_TASKS} can recur"
            )
        positions = {builder: i for i, builder in enumerate(self._builders)}
        tasks = [self._node(builder, positions) for builder in self._builders]
        for spec, name in zip(tasks, self._names(tasks), strict=True):
            spec.key = name
        order = batch_order([[e.parent for e in spec.edges] for spec in tasks], lambda i: tasks[i].key)
        place = {old: new for new, old in enumerate(order)}
        ordered = [tasks[i] for i in order]  # parents first, so that a run needs no sorting
        for spec in ordered:
            spec.edges = [msgspec.structs.replace(edge, parent=place[edge.parent]) for edge in spec.edges]
        return ScheduleSpec(
            self.name,
            self._bounded_recurrence(self.name),
            TaskSpec(GRAPH, "", ""),
            self._catchup or "skip",
            self._overlap or "allow",
            self._run_on_startup,
            replace,
            self._jitter,
            graph=ordered,
        )

    def _node(self, builder: TaskBuilder, positions: dict[TaskBuilder, int]) -> TaskSpec:
        builder._refuse_recurrence_settings()
        if builder._kind.makes_keys:
            raise InvalidScheduleError(unique_recurs(builder._kind.name))
        if any(isinstance(parent, int) for parent in builder._parents):
            raise InvalidScheduleError("the tasks of a recurring graph depend on tasks of the same graph only")
        spec = msgspec.structs.replace(builder._with_edges(positions))
        if spec.run_at:
            raise InvalidScheduleError("a recurring graph has times of its own: at() is for single tasks")
        if spec.correlation is not None:
            raise InvalidScheduleError("the tasks of a recurring graph have the correlation of their run")
        if spec.conflict != "keep":
            raise InvalidScheduleError(f"key(conflict={spec.conflict!r}) is for single tasks: each run has new ones")
        spec.key_retention = builder._kind.options.key_retention if spec.key is None else spec.key_retention
        return spec

    def _names(self, tasks: list[TaskSpec]) -> list[str]:
        """A name for each task: its key, else its kind, with a number from the second one on."""
        count: Counter[str] = Counter()
        taken = {spec.key for spec in tasks if spec.key is not None}
        if len(taken) < sum(spec.key is not None for spec in tasks):
            raise ConfigError(f"recurring graph {self.name!r} has two tasks of the same key()")
        names: list[str] = []
        for spec in tasks:
            name = spec.key
            while name is None:
                count[spec.kind] += 1
                number = count[spec.kind]
                wanted = spec.kind if number == 1 else f"{spec.kind}-{number}"
                name = None if wanted in taken else wanted
            names.append(name)
        return names

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.schedule()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.schedule_async()
