"""Functions for BatchTask."""

from __future__ import annotations

from typing import Any

from scheduler import TaskTimeout

calls: list[Any] = []
broken: set[Any] = set()


def double(ctx: Any, item: Any) -> Any:
    return 2 * item


def fragile(ctx: Any, item: Any) -> Any:
    calls.append(item)
    if item is None:
        raise TaskTimeout("the time is up")
    if item in broken:
        raise ValueError(f"{item} is broken")
    return item


def odd(ctx: Any, item: Any) -> Any:
    raise ValueError("caf\udce9 is broken")


async def later(ctx: Any, item: Any) -> Any:
    return item


def secret(ctx: Any, item: Any) -> Any:
    return item
