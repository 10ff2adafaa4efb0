"""What an attempt needs of whoever runs it: the engine's desk, or a child process that stands for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from scheduler.engine.attempt import Attempt
    from scheduler.engine.functions import Answer
    from scheduler.model.outcome import Outcome


class Drafts(Protocol):
    """Drafts tasks that handlers spawn; see ``builder.Drafter``."""

    def draft(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def of_item(self, kind: Any, item: Any) -> Any: ...
    def name_of(self, kind: Any) -> str: ...


class StoredDrafts(Drafts, Protocol):
    """The engine's own, which knows what is registered."""

    def stored(self, kind: str, payload: str) -> Any: ...


class Runtime(Protocol):
    """What an attempt needs of its engine."""

    @property
    def state(self) -> Any: ...

    settings: dict[str, Any]
    around_run: Callable[[Any], AbstractContextManager[Any]] | None
    lapses_at: float

    @property
    def patient(self) -> bool:
        """Whether attempts wait for a database that is away."""

    @property
    def drafts(self) -> Drafts | None: ...
    def now(self) -> int: ...
    def monotonic(self) -> float: ...
    def random(self) -> float: ...
    def request(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Future[dict[str, Any]]: ...
    def store(self, attempt: Attempt) -> tuple[Any, int, float]: ...
    def settled(self, attempt: Attempt, outcome: Outcome, ready: int) -> None: ...
    def load(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Any: ...
    def cpu(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> Answer[Any]: ...
