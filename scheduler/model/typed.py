"""What type checkers follow from a handler to its task's result, and from a program's state to its handlers."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from scheduler.model.task import TaskOptions

    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True, default=Any)
    App_co = TypeVar("App_co", covariant=True, default=Any)
else:  # a TypeVar has a default from Python 3.13 on; without it only a checker misses something
    from typing import TypeVar

    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True)
    App_co = TypeVar("App_co", covariant=True)


class Runs(Protocol[R_co]):
    """A task whose ``run`` returns an R."""

    __task_options__: ClassVar[TaskOptions]

    def run(self, ctx: Any, /) -> R_co: ...


class RunsAsync(Protocol[R_co]):
    """A task whose ``run`` is asynchronous and returns an R."""

    __task_options__: ClassVar[TaskOptions]

    def run(self, ctx: Any, /) -> Coroutine[Any, Any, R_co]: ...


class TypedBuilder(Protocol[R_co]):
    """A builder of a task that returns an R; builders are the client's."""

    def _drafted(self) -> Any: ...

    def _returns(self) -> R_co: ...
