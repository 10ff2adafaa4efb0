"""What one call of ``schedctl`` has in hand: options, configuration, database."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.errors import SchedulerError, StoreUnavailableError

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.config import Config
    from scheduler.store.database import Database
    from scheduler.store.read_workers import Fleet

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
FORMATS = ("table", "json", "jsonl")
_TRIES = 5


@dataclass
class Session:
    """The object of the click context. Nothing is read or opened before it is needed."""

    config_path: str | None = None
    output: str = "table"
    columns: str | None = None
    fields: Sequence[str] = ()

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
        from scheduler.config import load

        return load(self.config_path)

    @cached_property
    def database(self) -> Database:
        """The database of the configuration, not opened. Raises ConfigError."""
        from scheduler.ports import SystemClock
        from scheduler.store.database import Database

        store = self.config.store
        made = Database(store.url, SystemClock(), auto_migrate=store.auto_migrate)
        click.get_current_context().find_root().call_on_close(made.dispose)
        return made

    def existing(self) -> Database:
        """The database, for commands that have no business to create one. Raises StoreUnavailableError."""
        if self.database.missing():
            path = None if self.database.path is None else self.database.path.absolute()
            raise StoreUnavailableError(
                f"there is no database {path} yet; schedd makes it when it starts, or `schedctl db upgrade`"
            )
        return self.database

    def write(self, work: Callable[[sa.Connection], T], database: Database | None = None) -> T:
        """Do the work in one transaction, then wake idle workers. Raises SchedulerError."""
        from scheduler.store.failures import StoreTrouble

        database = database if database is not None else self.existing()
        for attempt in range(_TRIES):
            try:
                with database.write() as connection:
                    done = work(connection)
                break
            except StoreTrouble as trouble:
                # Two writers that lock rows in different orders: one of them is told to try again.
                if "collided" not in str(trouble) or attempt == _TRIES - 1:
                    raise
        self._ring(database)
        return done

    @staticmethod
    def _ring(database: Database) -> None:
        from scheduler.store.doorbell import make_bell

        with contextlib.suppress(OSError, SchedulerError):
            bell = make_bell(database)
            try:
                bell.ring()
            finally:
                bell.close()

    def fleet(self, connection: sa.Connection) -> Fleet:
        """The workers that take new work; says so on stderr if there are none."""
        from scheduler.store.read_workers import read_fleet

        found = read_fleet(connection, self.database.now())
        note_nobody(found.nobody)
        return found


def note(text: str) -> None:
    """A message for people, on stderr."""
    click.echo(f"schedctl: {text}", err=True)


def note_kind(connection: sa.Connection, kind: str | None) -> None:
    """Says on stderr that nobody knows the kind of which nothing was found, if so."""
    from scheduler.store.read_kinds import kind_names

    if kind is None:
        return
    known = kind_names(connection)
    if kind not in known:
        there = f"known are {', '.join(known)}" if known else "none is known"
        note(f"no worker has registered a kind {kind!r}; {there}")


def note_nobody(why: str | None) -> None:
    """Says on stderr that no worker takes new work, if so."""
    from scheduler.store.read_workers import NOT_LIVE

    if why is not None:
        until = "schedd is started" if why == NOT_LIVE else "one resumes, or another is started"
        note(f"{why}: tasks wait until {until}")


def prints(fields: Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]]) -> Callable[[F], F]:
    """Gives a command its session, and says which fields it prints; a callable makes them of its options.

    ``--columns`` that are not among them are refused here, before the command has done anything.
    """

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def called(*args: Any, **given: Any) -> Any:
            session = click.get_current_context().ensure_object(Session)
            session.fields = fields(given) if callable(fields) else fields
            _ = session.chosen
            return command(session, *args, **given)

        return called  # type: ignore[return-value]

    return decorate
