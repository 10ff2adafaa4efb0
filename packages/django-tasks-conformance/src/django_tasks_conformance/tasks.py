"""The tasks that the contracts enqueue. Each run is written to the file that $DJANGO_TASKS_RAN names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django_tasks_conformance.standard import task


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


@task
def other() -> None: ...


@task
def note(word: str) -> None:
    with Path(os.environ["DJANGO_TASKS_RAN"]).open("a", encoding="utf-8") as file:
        file.write(f"{word}\n")


@task
def broken(word: str) -> None:
    raise LookupError(word)


@task
def unstorable() -> Any:
    return object()


@task(takes_context=True)
def with_context(context: Any) -> list[Any]:
    return [context.attempt, context.task_result.id, str(context.task_result.status)]


def plain() -> None: ...


def without_context(word: str) -> None: ...


async def coroutine(number: int) -> int:
    return number + 1


def async_task() -> Any:
    """Made when it is asked for: a backend without coroutines refuses it."""
    global coroutine_task
    coroutine_task = task(coroutine) if not hasattr(coroutine, "func") else coroutine
    return coroutine_task
