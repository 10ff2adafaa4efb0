"""``?at=``: the past instant that a visitor asks a page for."""

from __future__ import annotations

import re
from datetime import datetime
from zoneinfo import ZoneInfo

from scheduler.console.visit import BadInputError, Visit
from scheduler.model.times import SECOND

_AGO = re.compile(r"(\d{1,6})\s*(s|m|min|h|d)")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


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
            found = found.replace(tzinfo=ZoneInfo(visit.preferences.zone))
        instant = round(found.timestamp() * SECOND)
    except (ValueError, OverflowError):
        raise BadInputError(
            f"at is a time such as 2026-03-01T02:30Z, or how long ago, like 2h, not {text!r:.60}"
        ) from None
    if instant > now:
        raise BadInputError(f"{text!r:.60} is still to come: a past time is needed")
    return instant
