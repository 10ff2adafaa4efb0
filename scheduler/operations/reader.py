"""The store of a command that only reads, without what it takes to write."""

from __future__ import annotations

from scheduler.ports import SystemClock
from scheduler.store.db.file_reader import FileReader as FileReader
from scheduler.store.db.file_reader import StoreReader as StoreReader
from scheduler.store.db.file_reader import open_file


def open_reader(url: str) -> FileReader | None:
    """A reader of the store at this URL, which is open; None if only a Database can read it, or say what is wrong."""
    return open_file(url, SystemClock())
