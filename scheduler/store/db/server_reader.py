"""A store on PostgreSQL read by psycopg."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from scheduler.ports import Clock
from scheduler.store.db import deadline, pg_connections
from scheduler.store.db.deadline import Deadline
from scheduler.store.db.pg_connections import PgConnections, with_settings
from scheduler.store.db.plain_reader import PlainReader, PlainTx
from scheduler.store.db.schema_version import HEAD, VERSION_TABLE
from scheduler.store.db.server_clock import SERVER_TIME, ServerClock
from scheduler.store.db.table_names import TABLES
from scheduler.store.db.tx import Tx

# One host at most, and no character that a URL may write in two ways.
_URL = re.compile(
    r"postgresql(?:\+psycopg)?://(?:(?P<user>[\w.-]+)(?::(?P<password>[\w.~!$*-]+))?@)?(?P<host>[\w.-]+)?(?::(?P<port>\d+))?"
    r"/(?P<dbname>[\w.-]+)(?:\?(?P<query>[\w.-]+=[\w./-]+(?:&[\w.-]+=[\w./-]+)*))?",
    re.ASCII,
)
_STATE = (
    f"SELECT (SELECT array_agg(version_num) FROM {VERSION_TABLE}), (SELECT array_agg(CAST(relname AS text)) "
    f"FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid)), {SERVER_TIME}"
)
# As SQLAlchemy's text() finds them: not \\:name, and not the type of value::type.
_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")


class ServerReader(PlainReader):
    """One session. :func:`server_reader` makes it."""

    dialect = "postgresql"

    def __init__(self, url: str, arguments: dict[str, Any], clock: Clock) -> None:
        """Raises ImportError without psycopg."""
        self._wires = PgConnections()
        super().__init__(url, clock, self._wires.errors)
        self.arguments = arguments
        self._server_clock = ServerClock()

    def is_usual(self) -> bool:
        from psycopg import IsolationLevel

        deadline.begin()
        try:
            self.raw = raw = self._wires.connect(**self.arguments)
        except self._errors as error:  # Database would wait as long once more
            self._raise_explained(error)
        try:
            raw.isolation_level = IsolationLevel.READ_COMMITTED
            before = self.clock.now()
            versions, tables, server = raw.execute(_STATE).fetchone()
            if not self.clock.steps:
                self._server_clock.measured(self.clock, before, server)
            raw.rollback()
            if raw.info.parameter_status("server_encoding") == "UTF8" and versions == [HEAD] and {*TABLES} <= {*tables}:
                return True
        except self._errors:
            pass
        self.close()
        return False

    def now(self) -> int:
        return self._server_clock.now(self.clock)

    def within(self, seconds: float, *, each: bool = False) -> Deadline:
        return pg_connections.within(seconds, each=each)

    def execute(self, sql: str, params: dict[str, Any]) -> Any:
        self.asked = sql
        return self.raw.execute(for_driver(sql), params)

    @contextmanager
    def read(self) -> Iterator[Tx]:
        deadline.begin()
        try:
            try:
                yield PlainTx(self, self.now())
            finally:
                if not self.raw.closed:
                    self.raw.rollback()
        except self._errors as error:
            self._raise_explained(error)


@lru_cache(maxsize=256)
def for_driver(sql: str) -> str:
    """A statement with ``:name`` parameters as psycopg takes it."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%")).replace("\\:", ":")


def server_reader(url: str, clock: Clock) -> ServerReader | None:
    """A reader of the store at this URL; None if the URL is not a usual one of a server, or there is no psycopg."""
    found = _URL.fullmatch(url)
    if found is None:
        return None
    parts = {name: value for name, value in found.groupdict().items() if value is not None}
    pairs = [pair.split("=") for pair in parts.pop("query", "").split("&") if pair]
    query = dict(pairs)
    if len(query) < len(pairs) or not query.keys().isdisjoint((*parts, "port")):
        return None
    try:
        return ServerReader(url, with_settings({**parts, **query}, query, "schedd"), clock)
    except ImportError:
        return None
