"""One database: connections, transactions, the time it runs on, and errors turned into sentences."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from scheduler.errors import SchedulerError, StoreUnavailableError
from scheduler.ports import Clock
from scheduler.store import migrate
from scheduler.store.connecting import make_engine
from scheduler.store.dialect import Dialect, dialect_named
from scheduler.store.failures import StoreTrouble, explain
from scheduler.store.gate import Gate
from scheduler.store.singles import Single, Singles
from scheduler.store.statement import ANSWERED
from scheduler.store.transaction import LIMIT, Places, Transaction
from scheduler.store.urls import parse_url
from scheduler.store.wires import Wires

_TRIES = 5
_CALIBRATED = 60.0  # seconds for which a calibration is good
_JUMP = 0.5  # seconds by which wall and monotonic time may disagree since then
_NEAR = 100_000  # microseconds: a calibration that took longer tells only between which bounds the offset is
_INHERITED: list[object] = []  # over a fork: kept, so that nobody closes here what is the parent's
T = TypeVar("T")


class Database:
    """Makes no connection before first use. ``auto_migrate`` None: yes on SQLite, no on PostgreSQL."""

    def __init__(self, url: str, clock: Clock, *, auto_migrate: bool | None = None) -> None:
        self.url = parse_url(url)
        dialect = dialect_named(self.url.get_backend_name())
        assert dialect is not None
        self.dialect: Dialect = dialect
        self.clock = clock
        self.auto_migrate = auto_migrate if auto_migrate is not None else dialect.name == "sqlite"
        self._offset = 0
        self._calibrated: tuple[int, float] | None = None  # wall and monotonic time of the last calibration
        self.answered_at = 0.0  # when the server last answered a turn (monotonic)
        self._wires: Wires | None = None
        self._engine: sa.Engine | None = None
        self._singles: Singles | None = None
        self._gate = Gate(None)
        self._opening = threading.Lock()
        self._places = Places()
        self._pid = os.getpid()

    def _leave_to_parent(self) -> None:
        """This process was forked: connections and locks that it inherited are its parent's."""
        if self._engine is not None:
            self._engine.dispose(close=False)
            _INHERITED.append(self._engine)
        _INHERITED.extend((self._singles, self._gate))
        self._engine, self._gate, self._opening = None, Gate(None), threading.Lock()
        self._pid = os.getpid()

    @property
    def path(self) -> Path | None:
        """The database file, for SQLite."""
        return Path(self.url.database or "") if self.dialect.name == "sqlite" else None

    def missing(self) -> bool:
        """Whether there is no file yet, of SQLite. Raises StoreUnavailableError if that may not be looked at."""
        if self.path is None:
            return False
        try:
            self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            raise StoreUnavailableError(
                f"cannot look at the database {self.path}: {error.strerror}; do it as the user that schedd runs as"
            ) from None
        return False

    def absolute_url(self) -> str:
        """The URL, password and all, as it is for a process elsewhere on this machine."""
        path = self.path
        url = self.url if path is None else self.url.set(database=str(path.absolute()))
        return url.render_as_string(hide_password=False)

    @property
    def bell_directory(self) -> Path | None:
        """Where the doorbell's sockets and the gate's locks of a SQLite file live."""
        path = self.path
        return None if path is None else path.with_name(path.name + ".bell")

    def now(self) -> int:
        """The one clock of scheduling: wall time in microseconds, on PostgreSQL the server's."""
        return self.clock.now() + self._offset

    @property
    def offset(self) -> int:
        """What :meth:`now` adds to this machine's clock to agree with the server's, in microseconds."""
        return self._offset

    def calibrate(self, connection: sa.Connection, *, if_due: bool = False) -> None:
        """Measure how far this machine's clock is from the server's. A clock that a test steps is left alone.

        ``if_due``: only after a while, or when the wall clock was set.
        """
        if self.dialect.name != "postgresql" or self.clock.steps or (if_due and not self._calibration_due()):
            return
        before = self.clock.now()
        server = int(
            connection.execute(
                sa.text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)")
            ).scalar_one()
        )
        after = self.clock.now()
        low, high = server - after, server - before
        if not (self._calibrated and high - low > _NEAR and low <= self._offset <= high):
            # An answer that took its time says little: what was known before may be nearer to the truth.
            self._offset = (low + high) // 2
        self._calibrated = (after, self.clock.monotonic())

    def _calibration_due(self) -> bool:
        if self._calibrated is None:
            return True
        wall, mono = self._calibrated
        passed = self.clock.monotonic() - mono
        return passed > _CALIBRATED or abs((self.clock.now() - wall) / 1e6 - passed) > _JUMP

    @property
    def pooled(self) -> bool:
        """Whether a pooler stands between us and the server."""
        return self._wires is not None and self._wires.pooled

    def cut(self, thread: int) -> int:
        """End what this thread waits for from a server that does not answer. Returns how many connections were cut."""
        return 0 if self._wires is None else self._wires.cut(thread)

    def open(self) -> sa.Engine:
        """The SQLAlchemy engine; on first use checks (and, if allowed, migrates) the database.

        Raises StoreUnavailableError.
        """
        if self._engine is not None and self._pid == os.getpid():
            return self._engine
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._opening:
            if self._engine is None:
                engine, self._wires = make_engine(self.url)
                try:
                    migrate.ensure(engine, self.auto_migrate)
                    if self.dialect.name == "postgresql":
                        with engine.connect() as connection:
                            self.calibrate(connection)
                except sa.exc.SQLAlchemyError as error:
                    engine.dispose()
                    raise explain(error, self.url) from error
                except SchedulerError:
                    engine.dispose()
                    raise
                self._gate = self._make_gate()
                sa.event.listen(engine, "handle_error", _tell_transaction)
                self._singles = Singles(engine, self._wires, partial(self.calibrate, if_due=True))
                self._engine = engine
            return self._engine

    def _make_gate(self) -> Gate:
        directory = self.bell_directory
        if directory is None:
            return Gate(None)
        try:
            directory.mkdir(mode=0o770, exist_ok=True)
        except OSError:
            return Gate(None)
        return Gate(directory if os.access(directory, os.W_OK | os.X_OK) else None)

    @contextmanager
    def write(self, connection: sa.Connection | None = None) -> Iterator[sa.Connection]:
        """A transaction that writes: commits at the end, rolls back on an error.

        ``connection``: one that stays open between transactions (the engine's). Raises StoreUnavailableError.
        """
        engine = self.open()
        try:
            with self._gate.pass_through():
                if connection is not None:
                    with connection.begin():
                        self.calibrate(connection, if_due=True)
                        yield connection
                else:
                    with engine.begin() as fresh:
                        self.calibrate(fresh, if_due=True)
                        yield fresh
        except sa.exc.SQLAlchemyError as error:
            raise explain(error, self.url) from error

    def alone(self) -> AbstractContextManager[sa.Connection]:
        """A connection on which each statement given to :func:`run` is a transaction of its own.

        One round trip where BEGIN and COMMIT make three. Raises StoreUnavailableError.
        """
        self.open()
        assert self._singles is not None
        return Single(self._singles, self._gate)

    def insert_alone(self, make: Callable[[], tuple[str, Sequence[object]]]) -> int:
        """SQLite: insert a row in a transaction of its own. Returns its id.

        ``make``: the statement and its values, asked for once nobody else writes: not before, for it reads the clock.
        As :meth:`alone` does, in one go. Raises StoreUnavailableError.
        """
        engine = self.open()
        assert self._singles is not None
        gate = self._gate
        entered = gate.enter()
        try:
            return self._singles.insert(*make())
        except sa.exc.SQLAlchemyError as error:
            raise explain(error, engine.url) from error
        finally:
            if entered:
                gate.leave()

    def change(self, work: Callable[[sa.Connection], T]) -> T:
        """Do ``work`` in a transaction of its own; again if the server ended it since two waited for each other.

        Raises StoreUnavailableError.
        """
        for attempt in range(_TRIES):
            try:
                with self.write() as connection:
                    return work(connection)
            except StoreTrouble as trouble:
                if not trouble.collided or attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that only reads, without a lock. Raises StoreUnavailableError."""
        engine = self.open()
        try:
            with engine.connect() as fresh:
                yield fresh.execution_options(schedd_reads=True)
        except sa.exc.SQLAlchemyError as error:
            raise explain(error, self.url) from error

    @contextmanager
    def glance(self, connection: sa.Connection) -> Iterator[sa.Connection]:
        """For single statements that only read, each given to :func:`run`, on a connection that stays open between
        transactions: without a lock, and without BEGIN and COMMIT, which would make three round trips of one.

        Raises StoreUnavailableError.
        """
        try:
            if self.dialect.name == "sqlite":
                yield connection
            else:
                with _no_transaction(connection):
                    yield connection
        except sa.exc.SQLAlchemyError as error:
            raise explain(error, self.url) from error

    @contextmanager
    def single(self, connection: sa.Connection) -> Iterator[sa.Connection]:
        """As :meth:`glance` for a statement that writes, and is a transaction by itself.

        Raises StoreUnavailableError.
        """
        gate = self._gate
        entered = gate.enter()
        try:
            with self.glance(connection):
                self.calibrate(connection, if_due=True)
                yield connection
        finally:
            if entered:
                gate.leave()

    def connect(self, idle_limit: float | None = None) -> sa.Connection:
        """A connection of the caller's own, for :meth:`write`. Raises StoreUnavailableError.

        ``idle_limit`` (an engine's, for its turns): seconds without anything happening after which the server
        (PostgreSQL) ends a transaction: a process that stands still, or a machine that is gone, must not keep its
        locks. Behind a pooler that is the pooler's to do.
        """
        try:
            connection = self.open().connect()
            if idle_limit is not None and self.dialect.name == "postgresql" and not self.pooled:
                limit = max(1, round(idle_limit * 1000))
                connection.exec_driver_sql(f"SET idle_in_transaction_session_timeout = {limit}")
                connection.commit()
            if idle_limit is not None:
                connection.info[ANSWERED] = self._answered
            return connection
        except sa.exc.SQLAlchemyError as error:
            raise explain(error, self.url) from error

    def _answered(self) -> None:
        self.answered_at = self.clock.monotonic()

    def transaction(self, idle: float) -> Transaction:
        """A connection for a handler's own rows. Raises StoreUnavailableError; Collided if too many are open.

        ``idle``: seconds between two statements after which PostgreSQL ends it.
        """
        limit = LIMIT if self.dialect.name == "sqlite" else None
        try:
            return Transaction(self.open(), self._gate, self._places, limit, idle)
        except sa.exc.SQLAlchemyError as error:
            raise explain(error, self.url) from error

    def dispose(self) -> None:
        """Close the pool; the next use opens it anew."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._opening:
            if self._engine is not None:
                if self._singles is not None:
                    self._singles.close()
                self._engine.dispose()
                self._engine = None
                self._gate = Gate(None)  # its locks' files are closed once nobody passes through any more


@contextmanager
def _no_transaction(connection: sa.Connection) -> Iterator[None]:
    """Inside, each statement is a transaction of its own (PostgreSQL)."""
    raw: Any = connection.connection.dbapi_connection
    raw.autocommit = True
    try:
        yield
    finally:
        connection.rollback()  # SQLAlchemy's idea of a transaction: the server has none
        if raw.closed:
            connection.invalidate()
        else:
            raw.autocommit = False


def _tell_transaction(context: sa.engine.ExceptionContext) -> None:
    if isinstance(context.connection, Transaction):
        context.connection.failed(context.original_exception)
