"""Visit: one request as the functions of pages and verbs get it; the past instant that it asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.console.roles import Principal, Verb
from scheduler.errors import SchedulerError
from scheduler.model.redact import redact
from scheduler.model.task_filter import TaskFilter
from scheduler.model.times import SECOND
from scheduler.model.zoned import find_zone, zone_of
from scheduler.operations.desk import Desk, ReadTooLongError, Tx
from scheduler.operations.filter import FilterError, parse
from scheduler.operations.masks import secret_path
from scheduler.operations.pauses import Pause, of_everything

if TYPE_CHECKING:
    from scheduler.app import Scheduler
    from scheduler.config.model import Config, ConsoleSection


STATEMENT_SECONDS = 2.0  # that a statement of a page may take
PREFERENCES = "schedd_console"  # the cookie of theme and zone
THEMES = ("auto", "light", "dark")
MAX_TEXT = 2000  # characters of one parameter
_ZONE = re.compile(r"[A-Za-z0-9_+\-/]{1,64}")


_AGO = re.compile(r"(\d{1,6})\s*(s|m|min|h|d)")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class BadInputError(Exception):
    """What was sent is no value for this; the text says what is."""

    def __init__(self, text: str, status: int = 422) -> None:
        super().__init__(text)
        self.status = status


class Preferences(NamedTuple):
    """How a visitor wants pages: the theme, and the zone of times."""

    theme: str = "auto"
    zone: str = "UTC"

    @classmethod
    def read(cls, cookie: str | None, default_zone: str) -> Preferences:
        """From the cookie ``theme|zone``; what does not fit is left at its default."""
        theme, _, zone = (cookie or "").partition("|")
        return cls(theme if theme in THEMES else "auto", zone if is_zone(zone) else default_zone)


def is_zone(name: str) -> bool:
    """Whether there is a time zone of this name."""
    return _ZONE.fullmatch(name) is not None and find_zone(name) is not None


class Site(NamedTuple):
    """What all visits share. ``wake_bulks``: has bulks run that were started."""

    jobs: Scheduler
    settings: ConsoleSection
    config: Config | None
    wake_bulks: Callable[[], object] = lambda: None


class Visit:
    """One request. ``params``: of the path; ``query`` and ``form``: lists of values by name. ``wanted``: the path and
    query to come back to after a log-in."""

    wanted = ""

    def __init__(
        self,
        site: Site,
        who: Principal,
        path: str,
        params: Mapping[str, Any],
        query: Mapping[str, list[str]],
        form: Mapping[str, list[str]],
        preferences: Preferences,
        prefix: str = "",
        json: bool = False,
        last_event: str | None = None,
    ) -> None:
        self.site, self.who, self.path, self.params = site, who, path, params
        self.query, self.form, self.preferences, self.prefix = query, form, preferences, prefix
        self.json, self.last_event = json, last_event

    @property
    def jobs(self) -> Scheduler:
        """The Scheduler whose calls pages and verbs use."""
        return self.site.jobs

    @property
    def desk(self) -> Desk:
        """The store that operations work on."""
        return self.jobs.desk

    def read(self) -> AbstractContextManager[Tx]:
        """A transaction that only reads, and computes for no longer than two seconds."""
        return self.jobs.desk.bounded_read(STATEMENT_SECONDS)

    def filter(self, tx: Tx, text: str) -> TaskFilter:
        """Read a filter of tasks, which asks for nothing that pages hide. Raises BadInputError."""
        try:
            return parse(text, tx.now, lambda path: secret_path(tx, path))
        except FilterError as error:
            raise BadInputError(str(error), 403 if error.masked else 422) from None

    def may(self, verb: Verb | str) -> bool:
        """Whether the visitor may do it."""
        return self.who.may(verb)

    @property
    def masked(self) -> bool:
        """Whether secrets are hidden; pages hide them from everybody, ``reveal`` is a verb of its own."""
        return True

    def everything_paused(self) -> Pause | None:
        """The pause of everything, which each page says; None without one, or if the database does not answer."""
        if not self.may(Verb.LOOK):
            return None
        try:
            with self.read() as tx:
                found = of_everything(tx)
        except (SchedulerError, ReadTooLongError):
            return None
        return None if found is None else found._replace(reason=None if found.reason is None else redact(found.reason))

    def asked(self, name: str, default: str = "") -> str:
        """The text of a query parameter. Raises BadInputError."""
        return _text(self.query, name, default)

    def given(self, name: str, default: str = "") -> str:
        """The text of a form's field. Raises BadInputError."""
        return _text(self.form, name, default)

    def ticked(self, name: str) -> bool:
        """Whether a box of the form is ticked."""
        return self.given(name) not in ("", "0", "off", "false")

    def number(self, name: str, default: int | None = None, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
        """A whole number from the query. Raises BadInputError."""
        return _number(self.asked(name), name, default, least, most)

    def given_number(self, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
        """A whole number from the form. Raises BadInputError."""
        return _number(self.given(name), name, None, least, most)


def _text(values: Mapping[str, list[str]], name: str, default: str) -> str:
    found = values.get(name)
    if not found:
        return default
    text = found[-1].strip()
    if len(text) > MAX_TEXT:
        raise BadInputError(f"{name} has more than {MAX_TEXT} characters")
    return text


def _number(text: str, name: str, default: int | None, least: int, most: int) -> int | None:
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20) or not least <= int(text) <= most:
        raise BadInputError(f"{name} is a whole number from {least}, not {text[:40]!r}")
    return int(text)


def asked_instant(visit: Visit, now: int) -> int | None:
    """The instant of ``?at=`` in microseconds: RFC 3339, a local time of the visitor's zone, or how long ago (``2h``).

    None if nothing is asked for. Raises BadInputError.
    """
    text = visit.asked("at")
    if not text:
        return None
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now - int(ago[1]) * _UNITS[ago[2]] * SECOND
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            found = found.replace(tzinfo=zone_of(visit.preferences.zone))
        instant = round(found.timestamp() * SECOND)
    except (ValueError, OverflowError):
        raise BadInputError(
            f"at is a time such as 2026-03-01T02:30Z, or how long ago, like 2h, not {text!r:.60}"
        ) from None
    if instant > now:
        raise BadInputError(f"{text!r:.60} is still to come: a past time is needed")
    return instant
