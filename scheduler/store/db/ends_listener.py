"""EndsListener: wakes a program that subscribes to ends when an engine has recorded some. Polling is behind it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from scheduler.ports import spawn_thread
from scheduler.store.db.database import Database
from scheduler.store.db.notifier import ENDS_SUFFIX, PgNotifier
from scheduler.store.db.sqlite_files import make_socket_directory
from scheduler.system.mailboxes import Mailboxes


class EndsListener(Protocol):
    """``works``: whether it wakes."""

    @property
    def works(self) -> bool: ...
    def close(self) -> None: ...


class _Nothing:
    works = False

    def close(self) -> None: ...


def listen_to_ends(database: Database, wake: Callable[[], None]) -> EndsListener:
    """Begin to listen; ``wake`` is called in a thread of its own. Where that is not possible it never is."""
    database.look()
    if database.dialect.name == "postgresql":
        listener = PgNotifier(database, of_ends=True)
        listener.listen(secrets.token_hex(8), wake)
        return listener
    directory = database.socket_directory
    assert directory is not None
    assert database.path is not None
    try:
        make_socket_directory(directory, database.path)
        return _SocketListener(directory, wake)
    except (OSError, RuntimeError):
        return _Nothing()


class _SocketListener:
    """A mailbox ``<random>.ends`` beside a SQLite file."""

    works = True

    def __init__(self, directory: Path, wake: Callable[[], None]) -> None:
        self._boxes = Mailboxes(directory)
        self._farewell = secrets.token_bytes(16)
        self._name = f"{secrets.token_hex(8)}{ENDS_SUFFIX}"
        try:
            self._socket = self._boxes.bind(self._name)
            spawn_thread(lambda: self._serve(wake), "schedd-ends-listener")
        except BaseException:
            self.close()
            raise

    def _serve(self, wake: Callable[[], None]) -> None:
        while True:
            try:
                message = self._socket.recv(17)
            except OSError:
                return
            if message == self._farewell:
                self._socket.close()
                return
            wake()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._boxes.send(self._name, self._farewell)
        self._boxes.release(self._name)
        self._boxes.close()
