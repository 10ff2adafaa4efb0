"""The store of a command that only reads, without what it takes to write."""

from __future__ import annotations

from scheduler.ports import SystemClock
from scheduler.store.db.plain_reader import PlainReader as PlainReader
from scheduler.store.db.plain_reader import StoreReader as StoreReader


def plain_reader(url: str) -> PlainReader | None:
    """A reader of the store at this URL; None if only a Database can read it, or say what is wrong with it."""
    if url.startswith("sqlite"):
        from scheduler.store.db.file_reader import file_reader

        return file_reader(url, SystemClock())
    from scheduler.store.db.server_reader import server_reader

    return server_reader(url, SystemClock())
