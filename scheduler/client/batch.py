"""Batch: stores many tasks at once, all or none."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, overload

from scheduler.client.builder import TaskBuilder, make_builder
from scheduler.client.submitter import TaskSubmitter
from scheduler.errors import ConfigError
from scheduler.model.names import check_text
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.task import Task, TaskFunction
from scheduler.model.typed import R, Runs, RunsAsync

if TYPE_CHECKING:
    from scheduler.client.submitter import AnyConnection

P = ParamSpec("P")


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
