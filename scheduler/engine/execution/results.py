"""``ctx.results``: what a task's parents returned, by id and by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Pick = Callable[[Mapping[int, Any], str | int], Any]


class Results:
    """The results of a task's parents."""

    __slots__ = ("_load", "_pick")

    def __init__(self, load: Callable[[], dict[int, Any]], pick: Pick) -> None:
        self._load = load
        self._pick = pick

    def __call__(self) -> dict[int, Any]:
        """All by id; None for a parent that returned nothing or did not succeed.

        Raises ResultExpiredError if one is removed. Results of parents that had to succeed stay until this task has
        succeeded or is removed.
        """
        return self._load()

    def __getitem__(self, parent: str | int) -> Any:
        """The result of one, by the name that ``depend_on`` gave it, or its id. Raises KeyError."""
        return self._pick(self._load(), parent)


class AsyncResults:
    """:class:`Results` in an asynchronous handler: awaited."""

    __slots__ = ("_load", "_pick")

    def __init__(self, load: Callable[[], Awaitable[dict[int, Any]]], pick: Pick) -> None:
        self._load = load
        self._pick = pick

    async def __call__(self) -> dict[int, Any]:
        """All by id. See :class:`Results`."""
        return await self._load()

    async def __getitem__(self, parent: str | int) -> Any:
        """The result of one, by its name or id. See :class:`Results`."""
        return self._pick(await self._load(), parent)
