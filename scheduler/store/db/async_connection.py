"""Runs the store's own code on a connection of SQLAlchemy's asyncio extension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from scheduler.errors import ConfigError

T = TypeVar("T")


async def run_on(given: Any, work: Callable[[Any], T]) -> T:
    """Call ``work`` with the Connection or Session behind an AsyncConnection or AsyncSession, in its transaction.

    Each statement is awaited, so the event loop goes on meanwhile. Raises ConfigError for anything else.
    """
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    if isinstance(given, async_scoped_session):
        given = given()
    if not isinstance(given, AsyncConnection | AsyncSession):
        hint = "; schedule() and `with` take a Connection or Session" if hasattr(given, "connection") else ""
        raise ConfigError(
            f"connection= takes an AsyncSession or AsyncConnection here, not {type(given).__name__}{hint}"
        )
    return await given.run_sync(work)
