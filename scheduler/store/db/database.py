"""One database: connections, transactions, the time it runs on, and errors turned into sentences."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from scheduler.errors import ConfigError, SchedulerError, StoreUnavailableError
from scheduler.forking import after_fork, leave_to_parent
from scheduler.ports import Clock
from scheduler.store.db import deadline, migrate, pg_blockers, writable
from scheduler.store.db.autocommit import AutocommitConnection, AutocommitPool
from scheduler.store.db.deadline import Deadline
from scheduler.store.db.dialect import Dialect, dialect_named, prepared
from scheduler.store.db.django_connection import DjangoConnection
from scheduler.store.db.engines import load_driver, make_engine
from scheduler.store.db.errors import StoreError, cause, translate
from scheduler.store.db.handler_transaction import LIMIT, Places, Transaction
from scheduler.store.db.identity import SameStore, no_transaction
from scheduler.store.db.pg_connections import PgConnections, every, within
from scheduler.store.db.server_clock import ServerClock
from scheduler.store.db.sqlite_files import fold_wal, keep_in_use, make_socket_directory
from scheduler.store.db.statements import ANSWERED, Notice
from scheduler.store.db.tx import Tx
from scheduler.store.db.urls import parse_url, shown
from scheduler.store.db.write_gate import WriteGate

_TRIES = 5
_READ_ONLY = "25006"  # PostgreSQL's code of a statement that writes, on a server that takes no writes
LOCK_WAIT, MIN_LOCK_WAIT = 0.3, 0.5  # an engine's statement waits for a lock: this part of a lease, seconds at least
STATEMENT, MIN_STATEMENT = 4, 60.0  # and takes no longer than so many leases, seconds at least
_LIMITS = (
    # What a user's own setting says keeps to that, where it is less.
    "SELECT set_config(s.name, CAST(least(nullif(CAST(s.setting AS int), 0), CAST(l.value AS int)) AS text), false) "
    "FROM json_each_text(CAST(:limits AS json)) l JOIN pg_settings s ON s.name = l.key"
)
T = TypeVar("T")


class Database:
    """Makes no connection before first use. ``auto_migrate`` None: yes on SQLite, no on PostgreSQL; ``notify``: wake
    idle workers of other processes, which poll otherwise."""

    def __init__(self, url: str, clock: Clock, *, auto_migrate: bool | None = None, notify: bool = True) -> None:
        self.url = parse_url(url)
        dialect = dialect_named(self.url.get_backend_name())
        assert dialect is not None
        self.dialect: Dialect = dialect
        self.auto_migrate = auto_migrate if auto_migrate is not None else dialect.name == "sqlite"
        self.notifies = notify
        self.clock = clock
        self.application_name = "schedd"  # in the server's list of sessions, of those made from now on
        self.connections: int | None = None  # at once to a server, if it is to take fewer than a program may
        self.server_clock = ServerClock()
        self.answered_at = 0.0  # when the server last answered a cycle (monotonic)
        self._wires: PgConnections | None = None
        self._engine: sa.Engine | None = None
        self._singles: AutocommitPool | None = None
        self._closer: weakref.finalize[..., Any] | None = None  # if the program drops this, or ends
        self._gate = WriteGate(None)
        self._opening = threading.Lock()
        self._places = Places()
        self.refusal: str | None = None  # why it is not to be used at all
        self._looks = False  # it was opened only to look
        self._wrote = False  # it was opened to write
        self._inherited = False  # what it holds is the parent's: this process was forked since
        self.same = SameStore(self.url, self.path, partial(self.server_clock.now, clock))
        after_fork(self, Database._on_fork)

    def _on_fork(self) -> None:
        self._inherited = True
        if self._engine is not None and self.path is not None:
            keep_in_use(self.path)

    def _leave_to_parent(self) -> None:
        """This process was forked: connections and locks that it inherited are its parent's."""
        if self._engine is not None:
            self._engine.dispose(close=False)
            leave_to_parent(self._engine)
        if self._closer is not None:
            self._closer.detach()
        leave_to_parent(self._singles, self._gate)
        self._engine, self._gate, self._opening = None, WriteGate(None), threading.Lock()
        self._inherited = False

    @cached_property
    def path(self) -> Path | None:
        """The database file, for SQLite."""
        return Path(self.url.database or "") if self.dialect.name == "sqlite" else None

    def missing(self) -> bool:
        """Whether there is no file yet, of SQLite, or one with nothing in it, which is no database either.

        Raises StoreUnavailableError if that may not be looked at.
        """
        if self.path is None:
            return False
        try:
            return self.path.stat().st_size == 0
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            raise StoreUnavailableError(
                f"cannot look at the database {self.path}: {error.strerror}; do it as the user that schedd runs as"
            ) from None

    def absolute_url(self) -> str:
        """The URL, password and all, as it is for a process elsewhere on this machine."""
        path = self.path
        url = self.url if path is None else self.url.set(database=str(path.absolute()))
        return url.render_as_string(hide_password=False)

    @property
    def socket_directory(self) -> Path | None:
        """Directory of a SQLite file's notifier sockets and write-gate locks."""
        path = self.path
        return None if path is None else path.with_name(path.name + ".notify")

    def now(self) -> int:
        """The one clock of scheduling: wall time in microseconds, on PostgreSQL the server's."""
        return self.clock.now() + self.server_clock.offset

    @property
    def offset(self) -> int:
        """What :meth:`now` adds to this machine's clock to agree with the server's, in microseconds."""
        return self.server_clock.offset

    @property
    def round_trip(self) -> float:
        """Seconds that a question and its answer take to and from the server: the least of the last measurements."""
        return self.server_clock.round_trip

    def calibrate(self, connection: sa.Connection, *, if_due: bool = False) -> None:
        """Measure how far this machine's clock is from the server's; ``if_due``: only if it is time to.

        A clock that a test steps is left alone.
        """
        if self.dialect.name == "postgresql" and not self.clock.steps:
            self.server_clock.calibrate(connection, self.clock, if_due=if_due)

    @property
    def pooled(self) -> bool:
        """Whether a pooler stands between us and the server."""
        return self._wires is not None and self._wires.pooled

    def cut(self, thread: int) -> int:
        """End what this thread waits for from a server that does not answer. Returns how many connections were cut."""
        return 0 if self._wires is None else self._wires.cut(thread)

    def look_again(self, connection: sa.Connection) -> None:
        """See whether ``same.identity`` is still that of the store, on a connection that stays open.

        Raises StoreReplacedError, StoreUnavailableError.
        """
        self.check_file()
        try:
            self.same.look(connection)
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, self.url) from error

    def check_file(self) -> None:
        """Raise StoreReplacedError if the path of the open SQLite file leads to another one by now, or to none."""
        self.same.check_file()

    def distrust(self) -> None:
        """The server takes no writes any more: each connection to it is replaced by a new one before it is used again.

        A standby may have taken its place while the sessions were kept.
        """
        if self._wires is not None:
            self._wires.distrust()

    def trusts(self, connection: sa.Connection) -> bool:
        """Whether this open connection may still be used: see :meth:`distrust`."""
        return self._wires is None or self._wires.trusts(connection.connection.dbapi_connection)

    def within(self, seconds: float | None, *, each: bool = False) -> AbstractContextManager[Deadline | None]:
        """A context in which this thread gets StoreUnavailableError for what has not been answered in so many seconds
        (and a fraction of one), whatever the server does. None: no limit. ``each``: each transaction has so long."""
        return nullcontext() if seconds is None else within(seconds, each=each)

    def waits_for(self, thread: int, seconds: float) -> str | None:
        """What this thread is waiting for at this moment: whose lock, or a server that does not answer; None: nothing.

        Looked up through a connection of its own, in at most ``seconds``.
        """
        if self.dialect.name == "sqlite" or not any(wires.busy(thread) for wires in every()):
            return None
        ours = {session for wires in every() for session in wires.sessions_of(thread)}
        try:
            return deadline.in_time(partial(self.locked_by, ours), seconds)
        except TimeoutError:
            return "it does not answer"
        except (StoreUnavailableError, sa.exc.SQLAlchemyError, RuntimeError):  # no thread can be had
            return None

    def locked_by(self, ours: Collection[int] = ()) -> str | None:
        """Whose lock keeps sessions waiting (PostgreSQL), but for ``ours``. Raises StoreUnavailableError."""
        if self.dialect.name == "sqlite":
            return None
        engine, _ = make_engine(self.url)
        try:
            with engine.connect() as connection:
                return pg_blockers.in_the_way(connection, ours)
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, self.url) from cause(error)
        finally:
            engine.dispose()

    def open(self) -> sa.Engine:
        """The SQLAlchemy engine, to write; on first use checks (and, if allowed, migrates) the database.

        Raises StoreUnavailableError, and ConfigError if it is not to be used.
        """
        return self._opened(looks=False)

    def open_beside(self, theirs: sa.Connection) -> None:
        """Check that the store is there, for what is done in a caller's transaction; as :meth:`open` does.

        Beside Django's connection no connection is made: its database may lie in memory, or be a test's that is to be
        dropped, and on SQLite that transaction keeps others out. Raises StoreUnavailableError.
        """
        if not isinstance(theirs, DjangoConnection):
            self.open()
            return
        if not migrate.works_on(migrate.current(theirs)):
            if not self.auto_migrate:
                raise StoreUnavailableError(f"{migrate.older(migrate.current(theirs))}: run `manage.py migrate`")
            migrate.make_on(theirs)
        self.calibrate(theirs, if_due=True)

    def look(self) -> sa.Engine:
        """As :meth:`open`, to look only: nothing is migrated or made, no file and no directory, and nothing written.

        Raises StoreUnavailableError, also if there is no database yet; ConfigError.
        """
        return self._opened(looks=True)

    def _opened(self, *, looks: bool) -> sa.Engine:
        if self.refusal is not None:
            raise ConfigError(self.refusal)
        if self._engine is not None and not self._inherited and (looks or not self._looks):
            self.same.check_file()
            return self._engine
        if self._inherited:
            self._leave_to_parent()
        if looks or not self.auto_migrate:
            self.refuse_missing()
        load_driver(self.url)
        with self._alone_opening():
            if self._engine is not None and self._looks and not looks:
                self._close()
            if self._engine is None:
                self._engine = self._open(looks)
                self._looks = looks
            return self._engine

    def _open(self, looks: bool) -> sa.Engine:
        self.same.begin(looks=looks)
        engine, self._wires = make_engine(
            self.url,
            _weakly(self.same.made),
            _weakly(self.same.check_file),
            application_name=self.application_name,
            connections=self.connections,
            looks=looks,
        )
        try:
            migrate.ensure(engine, self.auto_migrate, self.clock.now(), looks=looks)
            with engine.connect().execution_options(schedd_reads=True) as connection:
                if self.same.identity is None or self._wires is None:  # a new database; a file
                    self.same.look(connection)
                self.calibrate(connection)
        except sa.exc.SQLAlchemyError as error:
            engine.dispose()
            raise translate(error, self.url) from cause(error)
        except SchedulerError:
            engine.dispose()
            raise
        if not looks:
            self._gate, self._wrote = self._make_gate(), True
        sa.event.listen(engine, "handle_error", _tell_transaction)
        self._singles = AutocommitPool(
            engine,
            self._wires,
            partial(self.server_clock.is_due, self.clock),
            partial(_weakly(self.calibrate), if_due=True),
        )
        if self._wires is None:
            self._closer = weakref.finalize(self, _close_idle, os.getpid(), engine, self._singles)
        return engine

    def schema(self) -> str | None:
        """The revision of the database at this moment. Raises StoreUnavailableError."""
        try:
            with self.look().connect() as connection:
                return migrate.current(connection.execution_options(schedd_reads=True))
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, self.url) from cause(error)

    def shortage(self) -> str | None:
        """What this user may not do of what an engine needs, and the remedy. Raises StoreUnavailableError."""
        if self.dialect.name == "sqlite":
            return None
        with self.read() as tx:
            return writable.lacking(tx) or writable.too_few_connections(tx)

    def refuse_missing(self) -> None:
        """Raise StoreUnavailableError if there is no database file yet."""
        if self.missing():
            path = None if self.path is None else self.path.absolute()
            empty = path is not None and path.exists()
            what = f"the file {path} is empty, and no database yet" if empty else f"there is no database {path} yet"
            if path is not None and not path.parent.is_dir():
                raise StoreUnavailableError(f"{what}: the directory {path.parent} does not exist; create it")
            raise StoreUnavailableError(f"{what}; schedd makes it when it starts, or `schedctl db upgrade`")

    def _begin(self) -> None:
        """A transaction begins: its time counts from now on, or from when the driver is there."""
        if self._engine is None:
            load_driver(self.url)
        deadline.begin()

    def _explained(self, error: sa.exc.SQLAlchemyError) -> Exception:
        """What to raise for it; a server that takes no writes is not asked again."""
        if getattr(getattr(error, "orig", None), "sqlstate", None) == _READ_ONLY:
            self.distrust()
        return translate(error, self.url)

    @contextmanager
    def _alone_opening(self) -> Iterator[None]:
        if not self._opening.acquire(timeout=deadline.left(threading.TIMEOUT_MAX)):
            raise StoreError(f"store {shown(self.url)}: no answer to another thread, which opens it", True)
        try:
            yield
        finally:
            self._opening.release()

    def _make_gate(self) -> WriteGate:
        directory = self.socket_directory
        if directory is None:
            return WriteGate(None)
        try:
            make_socket_directory(directory, self.path or directory)
        except OSError:
            return WriteGate(None)
        return WriteGate(directory if os.access(directory, os.W_OK | os.X_OK) else None)

    @contextmanager
    def write(self, connection: sa.Connection | None = None) -> Iterator[Tx]:
        """A transaction that writes: commits at the end, rolls back on an error.

        ``connection``: one that stays open between transactions (the engine's). Raises StoreUnavailableError.
        """
        self._begin()
        engine = self.open()
        try:
            with self._gate.hold():
                if connection is not None:
                    with connection.begin():
                        self.calibrate(connection, if_due=True)
                        yield Tx(connection, self.now())
                else:
                    with engine.begin() as fresh:
                        self.calibrate(fresh, if_due=True)
                        yield Tx(fresh, self.now())
        except sa.exc.SQLAlchemyError as error:
            raise self._explained(error) from cause(error)

    def alone(self) -> AbstractContextManager[sa.Connection]:
        """A connection on which each statement given to :func:`run` is a transaction of its own.

        One round trip where BEGIN and COMMIT make three. Raises StoreUnavailableError.
        """
        self.open()
        assert self._singles is not None
        return AutocommitConnection(self._singles, self._gate)

    def insert_alone(self, make: Callable[[], tuple[str, Sequence[object] | Mapping[str, object]]]) -> Any:
        """SQLite: insert a row in a transaction of its own. Returns its id, None if the statement has ignored it.

        ``make``: the statement and its values, called once no other writer is active, for it reads the clock.
        As :meth:`alone` does, in one go. Raises StoreUnavailableError.
        """
        engine = self.open()
        assert self._singles is not None
        gate = self._gate
        entered = gate.enter()
        try:
            return self._singles.insert(*make())
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, engine.url) from cause(error)
        finally:
            if entered:
                gate.leave()

    def insert_on_server(
        self,
        make: Callable[[], tuple[str, Sequence[int | str]]],
        notice: Notice | None = None,
        meanwhile: Callable[[], None] | None = None,
        *,
        replans: bool = False,
    ) -> int | None:
        """PostgreSQL: insert a row in a transaction of its own, and notify once it is committed, in one round trip.

        Returns its id, None if the statement inserts nothing. ``make``: the statement, with ``$1`` for the first value
        and RETURNING id, and its values. ``meanwhile`` is called while the server works. ``replans``: it may
        have planned the statement for a table that has grown since. Raises StoreUnavailableError.
        """
        engine = self.open()
        assert self._singles is not None
        try:
            return self._singles.insert_on_server(make, notice, meanwhile, self.clock.monotonic() if replans else None)
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, engine.url) from cause(error)

    def notify(self, notice: Notice) -> None:
        """PostgreSQL: notify in a transaction of its own, and wait for no answer. Raises StoreUnavailableError."""
        engine = self.open()
        assert self._singles is not None
        try:
            self._singles.notify(notice)
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, engine.url) from cause(error)

    def change(self, work: Callable[[Tx], T]) -> T:
        """Do ``work`` in a transaction of its own; again if the server ended it since two waited for each other.

        Raises StoreUnavailableError.
        """
        for attempt in range(_TRIES):
            try:
                with self.write() as tx:
                    return work(tx)
            except StoreError as trouble:
                if not trouble.collided or attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """A transaction that only reads, without a lock. Raises StoreUnavailableError."""
        self._begin()
        engine = self.look()
        try:
            with engine.connect() as fresh:
                yield Tx(fresh.execution_options(schedd_reads=True), self.now())
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, self.url) from cause(error)

    @contextmanager
    def read_damaged(self) -> Iterator[Tx]:
        """As :meth:`read`, of a database that lacks tables and therefore cannot be opened.

        Raises StoreUnavailableError.
        """
        self._begin()
        self.refuse_missing()
        engine, _ = make_engine(self.url, looks=True)
        try:
            with engine.connect().execution_options(schedd_reads=True) as connection:
                self.calibrate(connection)
                yield Tx(connection, self.now())
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, self.url) from cause(error)
        finally:
            engine.dispose()

    @contextmanager
    def glance(self, connection: sa.Connection) -> Iterator[Tx]:
        """For single statements that only read, each given to ``Tx.rows``, on a connection that stays open between
        transactions: without a lock, and without BEGIN and COMMIT, which would make three round trips of one.

        Raises StoreUnavailableError.
        """
        try:
            if self.dialect.name == "sqlite":
                yield Tx(connection, self.now())
            else:
                with no_transaction(connection):
                    yield Tx(connection, self.now())
        except sa.exc.SQLAlchemyError as error:
            raise self._explained(error) from cause(error)

    @contextmanager
    def single(self, connection: sa.Connection) -> Iterator[Tx]:
        """For a statement that writes, and is a transaction by itself: on PostgreSQL it is given to
        :func:`statements.one_row`, for each call of the driver is dear in an engine that was idle.

        Raises StoreUnavailableError.
        """
        self.same.check_file()
        gate = self._gate
        entered = gate.enter()
        try:
            if self.dialect.name == "postgresql" and self.server_clock.is_due(self.clock):
                with no_transaction(connection):
                    self.calibrate(connection, if_due=True)
            yield Tx(connection, self.now())
        except BaseException as error:
            if self.dialect.name == "postgresql":
                connection.invalidate()  # its answers may not all be read
            if isinstance(error, sa.exc.SQLAlchemyError):
                raise self._explained(error) from cause(error)
            raise
        finally:
            if entered:
                gate.leave()

    def connect(self, idle_limit: float | None = None, *, looks: bool = False) -> sa.Connection:
        """A connection of the caller's own, for :meth:`write`, or for :meth:`glance` if it only ``looks``. Raises
        StoreUnavailableError.

        ``idle_limit`` (an engine's, for its cycles): seconds without anything happening after which the server
        (PostgreSQL) ends a transaction: a process that stands still, or a machine that is gone, must not keep its
        locks. A statement waits for a lock for less than that, and takes no longer than many times as much. Behind a
        pooler all this is the pooler's to do.
        """
        try:
            connection = (self.look() if looks else self.open()).connect()
            if idle_limit is not None and self.dialect.name == "postgresql" and not self.pooled:
                connection.execute(prepared(_LIMITS), {"limits": _limits(idle_limit)})
                connection.commit()
            if idle_limit is not None:
                connection.info[ANSWERED] = self._answered
            return connection
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, self.url) from cause(error)

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
            raise translate(error, self.url) from cause(error)

    def dispose(self) -> None:
        """Close the pool; the next use opens it anew."""
        if self._inherited:
            self._leave_to_parent()
        with self._opening:
            self._close()

    def _close(self) -> None:
        if self._engine is not None:
            if self._singles is not None:
                self._singles.close()
            self._engine.dispose()
            self._engine = None
            if self._closer is not None:
                self._closer.detach()
            self._gate = WriteGate(None)  # its lock files are closed once no writer holds it

    def settle(self) -> None:
        """:meth:`dispose` at a clean stop. SQLite's file alone is the whole database then, unless others use it."""
        self.dispose()
        if self.path is not None and self.refusal is None and self._wrote:
            fold_wal(self.path)


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """The method, for an engine that its database holds: a dropped one is to go at once, with its descriptors."""
    weak = weakref.WeakMethod(method)

    def call(*given: Any, **named: Any) -> None:
        if (found := weak()) is not None:
            found(*given, **named)

    return call


def _close_idle(process: int, engine: sa.Engine, singles: AutocommitPool) -> None:
    """Close the connections that nobody uses. Since Python 3.13 an open one of SQLite is complained about."""
    if os.getpid() == process:  # else they are the parent's
        with suppress(Exception):  # a program that ends is told of nothing
            singles.close()
            engine.dispose()


def _limits(idle: float) -> str:
    """The settings of an engine's session, in milliseconds, as JSON."""
    limits = {
        "idle_in_transaction_session_timeout": idle,
        "lock_timeout": max(MIN_LOCK_WAIT, LOCK_WAIT * idle),
        "statement_timeout": max(MIN_STATEMENT, STATEMENT * idle),
    }
    return json.dumps({name: max(1, round(1000 * seconds)) for name, seconds in limits.items()})


def _tell_transaction(context: sa.engine.ExceptionContext) -> None:
    if isinstance(context.connection, Transaction):
        context.connection.failed(context.original_exception)
