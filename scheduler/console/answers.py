"""Parts of answers: refusals and their statuses, files of the console itself, paths of a page."""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from scheduler import __version__
from scheduler.app import Scheduler
from scheduler.console.visit import BadInputError, Visit
from scheduler.errors import (
    ConfigError,
    CycleError,
    DuplicateKeyError,
    InvalidTransitionError,
    SchedulerError,
    StoreUnavailableError,
    UnknownBulkError,
    UnknownScheduleError,
    UnknownTaskError,
    UnknownWorkerError,
)
from scheduler.model.redact import redact
from scheduler.operations.desk import ReadTooLongError, in_time

FIND_HOLDER_S = 1.0  # seconds in which the session is looked for whose lock keeps something from being read
STATIC_SECONDS = 3600
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


class Refusal(Exception):
    """A request is not answered: a status, and why. ``where``: the argument that is wrong."""

    def __init__(
        self, status: int, text: str, headers: Mapping[str, str] | None = None, *, where: str | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.text, self.headers, self.where = status, text, dict(headers or {}), where


_STATUS: tuple[tuple[type[SchedulerError], int], ...] = (
    (UnknownTaskError, 404),
    (UnknownScheduleError, 404),
    (UnknownWorkerError, 404),
    (UnknownBulkError, 404),
    (InvalidTransitionError, 409),
    (DuplicateKeyError, 409),
    (CycleError, 409),
    (StoreUnavailableError, 503),
    (ConfigError, 422),
)


def status_of(error: SchedulerError) -> int:
    """The HTTP status of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 422)


def in_the_way(jobs: Scheduler) -> str | None:
    """Whose lock keeps the store from being read, as a sentence without its full stop; None: nobody's is known."""
    holder = None
    with suppress(TimeoutError, StoreUnavailableError, RuntimeError):
        holder = in_time(jobs.database.locked_by, FIND_HOLDER_S)
    return None if holder is None else holder[:1].upper() + holder[1:]


def refusal_of(error: Exception, holder: str | None = None) -> Refusal:
    """An error as a refusal. ``holder``: as :func:`in_the_way` names it. Raises what is none of ours."""
    match error:
        case Refusal():
            return error
        case BadInputError():
            return Refusal(error.status, str(error))
        case ReadTooLongError():
            return Refusal(503, f"{error}. {holder or 'Narrow the filter, or look at a shorter time'}.")
        case StoreUnavailableError():
            text = f"{error}. {holder or 'Tasks go on once the database answers again'}."
            return Refusal(503, redact(text))
        case SchedulerError():
            return Refusal(status_of(error), redact(str(error)))
    raise error


def listed_values(value: Any) -> list[str]:
    found = value if isinstance(value, list) else [value]
    return [one if isinstance(one, str) else json.dumps(one) for one in found if one is not None]


def own_path(text: str) -> str:
    """The path of a page of ours to go back to; empty for what leads elsewhere."""
    if not text.startswith("/") or text.startswith("//") or "\\" in text or not text.isprintable():
        return ""  # browsers take a backslash for a slash, and leave out a tab
    return text


def here(visit: Visit) -> str:
    """The path and query of this page, without what is for polling."""
    pairs = [(n, v) for n, values in visit.query.items() if n not in ("fragment", "t") for v in values]
    text = "&".join(f"{quote(n)}={quote(v)}" for n, v in pairs)
    return quote(visit.path, safe="/:@") + (f"?{text}" if text else "")


def twin_of(visit: Visit) -> str:
    path, _, query = here(visit).partition("?")
    return f"{'/index' if path == '/' else path}.json" + (f"?{query}" if query else "")


def html(body: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, dict(headers or {}), "text/html")


def static(name: str, known: str | None) -> Response:
    """A file of the console itself."""
    if not _FILE.fullmatch(name):
        raise Refusal(404, "There is no such file.")
    found = resources.files("scheduler.console").joinpath("static", name)
    if not found.is_file():
        raise Refusal(404, "There is no such file.")
    tag = f'"{__version__}-{len(found.read_bytes())}"'
    headers = {"etag": tag, "cache-control": f"public, max-age={STATIC_SECONDS}"}
    if known == tag:
        return Response(status_code=304, headers=headers)
    kind = mimetypes.guess_type(name)[0] or "text/plain"
    return Response(found.read_bytes(), headers=headers, media_type=kind)
