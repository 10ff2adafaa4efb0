"""What an attempt needs of its engine: EngineState, or RemoteRuntime in a child process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from scheduler.engine.attempt.attempt import Attempt
    from scheduler.model.outcome import Lifetimes, Outcome

T = TypeVar("T")


class CpuFuture(Future[T]):
    """The future of a function in a child process, set when all its processes have ended.

    ``cancel_remote``: ends the function there, which sets the future, too. Any thread may call it.
    """

    cancel_remote: Callable[[], None] = staticmethod(lambda: None)

    def set_by(self, function: Callable[..., T], args: tuple[Any, ...]) -> None:
        """Call the function here, and set what it returns or raises."""
        try:
            self.set_result(function(*args))
        except BaseException as error:
            self.set_exception(error)


class Drafts(Protocol):
    """Makes specs of tasks that handlers spawn; see ``client/builder.py``."""

    def draft(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def draft_of_item(self, kind: Any, item: Any) -> Any: ...
    def name_of(self, kind: Any) -> str: ...


class StoredDrafts(Drafts, Protocol):
    """The engine's own, which knows the registered kinds."""

    def stored(self, kind: str, payload: str) -> Any: ...


class Runtime(Protocol):
    """What an attempt needs of its engine."""

    @property
    def state(self) -> Any: ...

    settings: dict[str, Any]
    around_run: Callable[[Any], AbstractContextManager[Any]] | None
    lease_expires_at: float

    @property
    def began(self) -> Callable[[int, int], None]:
        """Notes that the handler of (task, claim) begins."""
        ...

    @property
    def waits_through_outages(self) -> bool:
        """Whether attempts wait while the database is unreachable."""
        ...

    @property
    def drafts(self) -> Drafts | None: ...
    def now(self) -> int: ...
    def monotonic(self) -> float: ...
    def random(self) -> float: ...
    def request(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Future[dict[str, Any]]: ...
    def store(self, attempt: Attempt) -> tuple[Any, int, float, Lifetimes]: ...
    def settled(self, attempt: Attempt, outcome: Outcome, ready: int) -> None: ...
    def decided(self, attempt: Attempt, outcome: Outcome) -> None:
        """Note the handler's failure. It stands, even if its hook or its process ends otherwise."""

    def load(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Any: ...
    def cpu(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> CpuFuture[Any]: ...
