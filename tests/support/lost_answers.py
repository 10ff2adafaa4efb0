"""Connections that break around a commit: before it, or after it, so that only its answer is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scheduler import Scheduler
from scheduler.errors import StoreUnavailableError
from scheduler.ports import FAILPOINTS
from support.fleet import step


def fail_at(patch: pytest.MonkeyPatch, place: str, nth: int | None = None) -> list[str]:
    """Break the connection at this failpoint: each time, or the ``nth`` time only. Returns the hits."""
    hits: list[str] = []

    def hit(name: str) -> None:
        if name == place:
            hits.append(name)
            if nth is None or len(hits) == nth:
                raise StoreUnavailableError("the connection broke")

    patch.setattr(FAILPOINTS, "hit", hit)
    return hits


def fail_a_step(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The engine's next step meets it, and nothing else does."""
    with monkeypatch.context() as patch:
        fail_at(patch, place)
        with pytest.raises(StoreUnavailableError):
            step(jobs)


def lose_the_answer(jobs: Scheduler, patch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    """To the first commit of a transaction in which ``module.name()`` found something to do. Returns what was lost."""
    done: list[str] = []
    lost: list[str] = []
    usual, write = getattr(module, name), jobs.database.write

    def noting(*args: Any, **given: Any) -> Any:
        found = usual(*args, **given)
        if found and any(found):
            done.append(name)
        return found

    @contextmanager
    def writing(*args: Any) -> Iterator[Any]:
        with write(*args) as tx:
            yield tx
        if done and not lost:
            lost.append(name)
            raise StoreUnavailableError("the connection broke")

    patch.setattr(module, name, noting)
    patch.setattr(jobs.database, "write", writing)
    return lost
