"""One snapshot for all viewers of a page: made again when the store has changed, and at most once a second.

A page that is dear to make is made less often, so that looking at it keeps neither the console nor the database busy.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from scheduler.errors import StoreUnavailableError
from scheduler.operations.desk import Database, change_token

LOOK_EVERY = 1.0  # seconds between two looks whether anything has changed
FRESH_SECONDS = 5.0  # for which a page holds where nothing has changed: ages and times go on
MAX_PAGES = 500
COST_FACTOR = 10.0  # a page holds for so many times as long as it took to make
MAX_HOLD = 30.0  # seconds, and no longer than this


class LiveSnapshot(NamedTuple):
    """A rendered page. ``tag``: another one when the page is. ``holds``: seconds for which it is not made again."""

    body: str
    tag: str
    made: float
    token: str
    holds: float


class Snapshots:
    """The rendered fragments that viewers poll for."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._pages: OrderedDict[Hashable, LiveSnapshot] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}
        self._token, self._looked = "", 0.0
        self._connection: Any = None
        self.made = 0  # pages made, for tests

    def get(self, key: Hashable, make: Callable[[], str]) -> LiveSnapshot:
        """The snapshot of a page, made by ``make`` if there is none, or if the store has changed since."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making, self._done(key, making):  # viewers of the same page wait for the first of them
            found, now = self._pages.get(key), time.monotonic()
            if found is not None and now - found.made < found.holds:
                return found
            token = self._change_token(now)
            if found is not None and found.token == token and now - found.made < FRESH_SECONDS:
                return found
            body = make()
            made = time.monotonic()
            holds = max(LOOK_EVERY, min(COST_FACTOR * (made - now), MAX_HOLD))
            tag = hashlib.blake2b(body.encode(), digest_size=12).hexdigest()
            snapshot = LiveSnapshot(body, tag, made, token, holds)
            with self._lock:
                self.made += 1
                self._pages[key] = snapshot
                self._pages.move_to_end(key)
                while len(self._pages) > MAX_PAGES:
                    self._pages.popitem(last=False)
            return snapshot

    @contextmanager
    def _done(self, key: Hashable, making: threading.Lock) -> Iterator[None]:
        """Keep nothing of a page that is not there, and that cannot be made: anybody may ask for any number of them."""
        try:
            yield
        finally:
            with self._lock:
                if self._making.get(key) is making:
                    del self._making[key]

    def forget(self) -> None:
        """Make every page anew: a verb has changed something."""
        with self._lock:
            self._pages.clear()

    def _change_token(self, now: float) -> str:
        with self._lock:
            if now - self._looked < LOOK_EVERY and self._token:
                return self._token
            self._looked = now
            self._token = self._look()
            return self._token

    def _look(self) -> str:
        """Ask on one connection that stays: what SQLite answers can be compared on the same one only."""
        if self._connection is None:
            self._connection = self._database.connect(looks=True)
        try:
            with self._database.glance(self._connection) as tx:
                return change_token(tx)
        except StoreUnavailableError:
            self._connection.close()
            self._connection = None
            raise

    def close(self) -> None:
        """Close the connection; the next look opens another one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
