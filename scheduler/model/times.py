"""Converts times from and to the integers used inside: microseconds, UTC."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from scheduler.errors import ConfigError, InvalidScheduleError

SECOND = 1_000_000
LONGEST = 1000 * 366 * 86400 * SECOND  # a thousand years: beyond it is a mistake
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_TEXT = r"(?a:(?:\s*\d+(?:\.\d+)?\s*(?:ms|min|[smhdw]))+\s*)"
_PART = r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def seconds_of_text(text: str) -> float | None:
    """Seconds of a text such as "90s", "10m", "1h30m" or "30d"; None if it is none. A number alone has no unit."""
    if not re.fullmatch(_TEXT, text):
        return None
    return sum(float(count) * UNITS[unit] for count, unit in re.findall(_PART, text))


def span_us(value: object, what: str, *, positive: bool = False) -> int:
    """A timedelta, a number of seconds, or a text such as "10m" as microseconds.

    Raises ConfigError that names ``what``.
    """
    if isinstance(value, str):
        seconds = seconds_of_text(value)
        if seconds is None:
            raise ConfigError(
                f'{what} must be seconds or a timedelta, not {brief(value)}; a text has units: "90s", "10m", "1h30m"'
            )
        value = seconds
    if isinstance(value, timedelta):
        result = value // _MICROSECOND
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and abs(value) != math.inf:
        # Compared before it is multiplied: what is too large for a number of microseconds is too long anyhow.
        result = round(value * SECOND) if abs(value) <= LONGEST else LONGEST + 1 if value > 0 else -1
    else:
        raise ConfigError(f"{what} must be seconds or a timedelta, not {brief(value)}")
    if result < 0 or (positive and result == 0):
        raise ConfigError(f"{what} must be {'more than' if positive else 'at least'} 0, not {brief(value)}")
    if result > LONGEST:
        raise ConfigError(f"{what} is over a thousand years: {brief(value)}")
    return result


def brief(value: object) -> str:
    """A value for an error message; Python refuses to write out an integer of thousands of digits."""
    try:
        return f"{value!r:.80}"
    except ValueError:
        return "a number of thousands of digits"


def instant_us(value: object, what: str) -> int:
    """An aware datetime as microseconds since the epoch, UTC.

    Raises InvalidScheduleError for a naive one, and for one out of datetime's range in UTC."""
    if not isinstance(value, datetime):
        raise InvalidScheduleError(f"{what} must be an aware datetime, not {value!r}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidScheduleError(
            f"{what} {value.isoformat()} has no time zone; say which, for example datetime(..., tzinfo=UTC)"
        )
    result = (value - _EPOCH) // _MICROSECOND
    if not _FIRST <= result <= LAST:
        raise InvalidScheduleError(f"{what} {value.isoformat()} is not within the years 1 to 9999 in UTC")
    return result


def to_datetime(us: int) -> datetime:
    """Microseconds since the epoch as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=us)
