"""One setting: turning what a file or the environment says into its type, and showing it without secrets.

Imports nothing heavy: ``schedctl`` reads the configuration on every call.
"""

from __future__ import annotations

import json
import math
import re
import types
import typing
from typing import Annotated, Any, Literal

import msgspec

from scheduler.errors import ConfigError

DURATION = "duration"
Duration = Annotated[float, DURATION]
"""Seconds; written as a number, or as text such as "90s", "24h", "1h30m" or "30d"."""

LONGEST = 1000 * 366 * 86400.0  # a thousand years: beyond it is a mistake
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DURATION = re.compile(r"(?:\s*\d+(?:\.\d+)?\s*(?:ms|min|[smhdw]))+\s*")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_USER_INFO = re.compile(r"(://[^:/@\s]*):.*@")
_SECRET_ARGUMENT = re.compile(r"((?:password|passwd|secret|token)=)[^&\s]*", re.IGNORECASE)
_SHOWN = 80


class Unfit(Exception):
    """A value that does not fit its setting; the text says what was expected."""


def mask(text: str) -> str:
    """``text`` with the passwords of any URL in it replaced by ``***``; rather too much than too little."""
    return _SECRET_ARGUMENT.sub(r"\1***", _USER_INFO.sub(r"\1:***@", text))


def parse_duration(value: object) -> float:
    """Seconds from a number or from text such as "24h". Raises ConfigError."""
    try:
        return _duration(value)
    except Unfit as error:
        raise ConfigError(f"{value!r} is not a duration: expected {error}") from None


def format_duration(seconds: float) -> str:
    """The shortest text that :func:`parse_duration` reads back as ``seconds``: "90s", "24h", "30d"."""
    for unit in ("d", "h", "m"):
        count = seconds / _UNITS[unit]
        if count >= 2 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def shown(value: object) -> str:
    """A value for an error message: as JSON, without passwords, not too long."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    text = mask(text)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def convert(kind: Any, value: object, *, text: bool) -> Any:
    """``value`` as the annotation ``kind`` wants it. ``text``: it comes from the environment, so all is text.

    Raises Unfit, whose text is what was expected.
    """
    kind, limits, duration = _unwrap(kind)
    if duration:
        result: Any = _duration(value)
        return _within(result, limits, 'seconds, or text such as "90s", "24h" or "30d"')
    if typing.get_origin(kind) is Literal:
        return _choice(value, typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return _list(value, text)
    if kind is bool:
        return _bool(value, text)
    if kind is int:
        return _within(_int(value, text), limits, "a whole number")
    if kind is str:
        if not isinstance(value, str) or not value.strip():
            raise Unfit("text, not empty" if value == "" else "text")
        return value.strip()
    raise TypeError(f"a setting cannot be of type {kind!r}")  # a mistake in Config, not in anybody's file


def optional(kind: Any) -> bool:
    """Whether the setting may be unset (None)."""
    return type(None) in typing.get_args(kind)


def is_duration(kind: Any) -> bool:
    """Whether the setting is a number of seconds."""
    return _unwrap(kind)[2]


def _unwrap(kind: Any) -> tuple[Any, msgspec.Meta, bool]:
    """The bare type, its limits, and whether it is a duration."""
    limits, duration = msgspec.Meta(), False
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    if typing.get_origin(kind) is Annotated:
        kind, *notes = typing.get_args(kind)
        for note in notes:
            if isinstance(note, msgspec.Meta):
                limits = note
            duration = duration or note == DURATION
    return kind, limits, duration


def _within(value: float, limits: msgspec.Meta, what: str) -> float:
    if limits.ge is not None and value < limits.ge:
        raise Unfit(f"{what}, at least {limits.ge:g}")
    if limits.gt is not None and value <= limits.gt:
        raise Unfit(f"{what}, more than {limits.gt:g}")
    if limits.le is not None and value > limits.le:
        raise Unfit(f"{what}, at most {limits.le:g}")
    return value


def _duration(value: object) -> float:
    expected = 'seconds, or text such as "90s", "24h" or "30d"'
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        result = float(value)
    elif isinstance(value, str) and _DURATION.fullmatch(value):
        result = sum(float(count) * _UNITS[unit] for count, unit in _DURATION_PART.findall(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = float(value) if abs(value) <= LONGEST else math.inf
    else:
        raise Unfit(expected)
    if not 0 <= result <= LONGEST:
        raise Unfit(f"{expected}, from 0 to a thousand years")
    return result


def _bool(value: object, text: bool) -> bool:
    if isinstance(value, bool):
        return value
    if text and isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
        return value.strip().lower() in _TRUE
    raise Unfit("true or false")


def _int(value: object, text: bool) -> int:
    if text and isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Unfit("a whole number")


def _choice(value: object, choices: tuple[str, ...]) -> str:
    if isinstance(value, str) and value.strip().lower() in choices:
        return value.strip().lower()
    raise Unfit(", ".join(choices[:-1]) + " or " + choices[-1])


def _list(value: object, text: bool) -> tuple[str, ...]:
    if text and isinstance(value, str):
        if value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except ValueError:
                raise Unfit('a list: a,b or a JSON list such as ["a", "b"]') from None
        else:
            value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list) and all(isinstance(part, str) and part for part in value):
        return tuple(value)
    raise Unfit('a list of texts such as ["a", "b"]')
