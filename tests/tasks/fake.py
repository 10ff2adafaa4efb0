"""A stand-in for the Context of the engine: as much of it as the built-in types use."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scheduler import errors


class FakeContext:
    """``cancel_when``: asked at every check with what was captured so far; True cancels the task."""

    def __init__(
        self,
        settings: dict[str, Any] | None = None,
        *,
        results: dict[int, Any] | None = None,
        cancel_when: Callable[[FakeContext], bool] | None = None,
        interruption: BaseException | None = None,
    ) -> None:
        self.id = 42
        self.kind = "Fake"
        self.attempt = 1
        self.key: str | None = None
        self.schedule: str | None = None
        self.state = None
        self.deadline = None
        self.settings = settings or {}
        self.idempotency_key = "task-42"
        self.created_at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        self.slot: datetime | None = None
        self.steps: dict[str, Any] = {}
        self.captured = ""
        self.progress: list[tuple[float, str | None]] = []
        self.checks = 0
        self._results = results or {}
        self._cancel_when = cancel_when
        self._interruption = interruption or errors.Cancelled("task 42 was cancelled")

    def check_cancelled(self) -> None:
        self.checks += 1
        if self._cancel_when is not None and self._cancel_when(self):
            raise self._interruption

    def heartbeat(self) -> None:
        self.check_cancelled()

    def report_progress(self, percent: float, message: str | None = None) -> None:
        self.check_cancelled()
        self.progress.append((percent, message))

    def capture(self, text: str) -> None:
        self.captured += text

    def results(self) -> dict[int, Any]:
        return self._results

    def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        if name not in self.steps:
            self.steps[name] = function(*args)
        return self.steps[name]

    def has_captured(self, text: str) -> bool:
        return text in self.captured


class AsyncFakeContext(FakeContext):
    """The same, awaited."""

    async def results(self) -> dict[int, Any]:  # type: ignore[override]
        return self._results

    async def report_progress(self, percent: float, message: str | None = None) -> None:  # type: ignore[override]
        super().report_progress(percent, message)


def file_settings(directory: Path, **more: Any) -> dict[str, Any]:
    """A blob store and a directory for uploads below ``directory``."""
    (directory / "incoming").mkdir(exist_ok=True)
    files = {"blobs": str(directory / "blobs"), "roots": [str(directory / "incoming")], **more}
    return {"files": files}
