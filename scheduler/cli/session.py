"""Session: the options, configuration and database of one call of ``schedctl``."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.echo import say
from scheduler.errors import StoreUnavailableError

if TYPE_CHECKING:
    from scheduler.config.model import Config
    from scheduler.operations.desk import Database, Desk, Tx
    from scheduler.operations.reader import PlainReader, StoreReader
    from scheduler.operations.tasks import Stale
    from scheduler.operations.workers import Fleet

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
FORMATS = ("table", "json", "jsonl")
# How long the database may take to answer a transaction. ``--timeout`` bounds all of them together instead.
DEFAULT_TIMEOUT_S = 60.0
TELL_AFTER, TELL_WITHIN = (
    2.0,
    1.0,
)  # seconds of waiting before its reason is printed, and that reading the reason may take


def _quiet_sqlalchemy() -> None:
    """Keep its log from stderr, where Python puts what nothing else takes: what goes wrong comes as an error, too."""
    import logging

    logger = logging.getLogger("sqlalchemy")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


class Session:
    """The object of the click context. It reads and opens nothing before the first use."""

    config_path: str | None = None
    output: str = "table"
    columns: str | None = None
    fields: Sequence[str] = ()
    timeout: float | None = None  # seconds in which the database has to answer everything; None: see PATIENCE
    zone: str = "UTC"  # in which tables show times
    colour: str = "auto"  # or always, never
    lasting: bool = False  # the command may take as long as it takes
    only_reads: bool = False  # the command reads once, and changes nothing
    _explains = False  # what a server is waited for is told

    @property
    def chosen(self) -> list[str] | None:
        """The fields that ``--columns`` names; None: all. As a table's head says them, they are known, too. Raises
        UsageError for one that the command does not print."""
        if self.columns is None:
            return None
        names = [name.strip() for name in self.columns.split(",") if name.strip()]
        if not names:
            raise click.UsageError(f"--columns names none; there are {', '.join(self.fields)}")
        found = [name.lower().replace(" ", "_") for name in names]
        for name, field in zip(names, found, strict=True):
            if field not in self.fields:
                raise click.UsageError(f"there is no column {name!r}; there are {', '.join(self.fields)}")
        return found

    @cached_property
    def config(self) -> Config:
        """The configuration. Raises ConfigError."""
        from scheduler.config.load import load

        return load(self.config_path)

    @cached_property
    def _opened(self) -> Desk:
        from scheduler.operations.desk import open_desk

        _quiet_sqlalchemy()
        store = self.config.store
        return open_desk(store.url, notify=store.notify)

    @cached_property
    def database(self) -> Database:
        """The database of the configuration, not opened. Raises ConfigError."""
        made = self._opened.database
        self._bound(made, made.dispose)
        return made

    @cached_property
    def reader(self) -> StoreReader:
        """The store, for what only reads it: by its driver alone where the command and the store allow that.

        Raises StoreUnavailableError.
        """
        from scheduler.operations.reader import plain_reader

        found = plain_reader(self.config.store.url) if self.only_reads else None
        if found is not None:
            self._bound(found, found.close)
            if found.is_usual():
                return found
        return self.existing()

    def _bound(self, store: Database | PlainReader, close: Callable[[], object]) -> None:
        """Have the context close the store, which is to answer in time."""
        root = click.get_current_context().find_root()
        root.call_on_close(close)
        if not self._explains and not self.config.store.url.startswith("sqlite"):
            self._explains = True
            waits = explaining_waits(lambda *given: self._opened.database.waits_for(*given), self.told)
            root.with_resource(waits)
        if self.timeout is not None or not self.lasting:
            patience = DEFAULT_TIMEOUT_S if self.timeout is None else self.timeout
            root.with_resource(store.within(patience, each=self.timeout is None))

    @cached_property
    def told(self) -> threading.Event:
        """Set once somebody has been told what the command waits for."""
        return threading.Event()

    def explain(self, error: StoreUnavailableError) -> None:
        """Name on stderr the session whose lock is in the way, where that ended the command before it was told."""
        if not self._explains or self.told.is_set() or getattr(error, "heals", False) is False:
            return
        from scheduler.operations.desk import in_time

        with contextlib.suppress(TimeoutError, StoreUnavailableError, RuntimeError):
            holder = in_time(self._opened.database.locked_by, TELL_WITHIN)
            if holder is not None:
                note(f"the database does not answer: {holder}")

    @cached_property
    def desk(self) -> Desk:
        """The store that operations work on, which must exist. Raises StoreUnavailableError."""
        self.existing()
        return self._opened

    def existing(self) -> Database:
        """The database, for commands that must not create one. Raises StoreUnavailableError."""
        self.database.refuse_missing()
        return self.database

    def making(self) -> Desk:
        """The store, for commands that schedule: a file that is not there yet is made, if the configuration lets
        programs do that. Raises StoreUnavailableError."""
        self.database.auto_migrate = bool(self.config.store.auto_migrate) and self.database.missing()
        return self._opened

    def fleet(self, tx: Tx) -> Fleet:
        """The workers that take new work; notes on stderr if there are none."""
        from scheduler.operations.workers import read_fleet

        found = read_fleet(tx)
        note_no_worker(found.no_worker)
        return found


@contextlib.contextmanager
def explaining_waits(waits_for: Callable[[int, float], str | None], told: threading.Event) -> Iterator[None]:
    """Print on stderr, once, why this thread waits for the database, if it waits long."""
    waiter, over = threading.get_ident(), threading.Event()

    def watch() -> None:
        while not over.wait(TELL_AFTER):
            reason = waits_for(waiter, TELL_WITHIN)
            if reason is not None and not over.is_set():
                told.set()
                note(f"waiting for the database: {reason}")
                return

    with contextlib.suppress(RuntimeError):  # the system has no thread left
        threading.Thread(target=watch, name="schedctl-waiting", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def note(text: str) -> None:
    """A message for people, on stderr."""
    say(f"schedctl: {text}", err=True)


def note_kind(tx: Tx, kind: str | None) -> None:
    """Note on stderr that no worker has registered a kind, if nothing was found of it."""
    from scheduler.operations.kinds import unknown_kind

    text = None if kind is None else unknown_kind(tx, kind)
    if text is not None:
        note(text)


def note_queue(tx: Tx, queue: str) -> None:
    """Note on stderr that no worker and no task knows a queue."""
    from scheduler.operations.kinds import unknown_queue

    text = unknown_queue(tx, queue)
    if text is not None:
        note(text)


def note_no_worker(why: str | None, refused: str | None = None) -> None:
    """Note on stderr that no worker takes new work, if so. ``refused``: why the database takes no writes."""
    from scheduler.operations.workers import tasks_wait

    text = tasks_wait(why, refused)
    if text is not None:
        note(text)


def prints(
    fields: Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]],
    *,
    lasting: bool = False,
    only_reads: bool = False,
) -> Callable[[F], F]:
    """Gives a command its session and the fields that it prints; a callable makes them of its options.

    ``lasting``: it may take as long as it takes, unless ``--timeout`` says otherwise. ``only_reads``: it changes
    nothing; with ``--reveal`` the audit records that.
    ``--columns`` that are not among them are refused here, before the command has done anything.
    """

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def called(*args: Any, **given: Any) -> Any:
            session = click.get_current_context().ensure_object(Session)
            session.lasting = lasting
            session.only_reads = only_reads and not (given.get("reveal") or given.get("watch"))
            session.fields = fields(given) if callable(fields) else fields
            _ = session.chosen
            try:
                return command(session, *args, **given)
            except StoreUnavailableError as error:
                session.explain(error)
                raise

        called.fields = fields  # type: ignore[attr-defined]  # for completion
        return called  # type: ignore[return-value]

    return decorate


def note_stale(stale: Stale, rerun: bool = False, *, option: bool = True) -> None:
    """Note the tasks that ran on how tasks had ended that run again. ``option``: the command has --rerun."""
    from scheduler.operations.tasks import told

    if not stale:
        return
    if not stale.ids:
        note(told(stale))
    elif rerun:
        note(f"{told(stale).replace(' ran ', ' had run ')}, and will run again")
    elif option:
        note(f"{told(stale)}: `--rerun` would run it again, as `schedctl rerun` does")
    else:
        note(f"{told(stale)}: `schedctl rerun {' '.join(map(str, stale.ids[:20]))}` runs it again")
