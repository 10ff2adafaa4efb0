"""Names of kinds and queues, and texts of callers."""

from __future__ import annotations

import re

from scheduler.errors import ConfigError, PayloadError
from scheduler.model.texts import storable

_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,199}\Z")


def is_name(value: str) -> bool:
    """Whether a text is a name: a letter first, then letters, digits and ``_ . : -``."""
    return _NAME.match(value) is not None


def check_name(what: str, value: object) -> str:
    """A kind's or queue's name, as :func:`is_name` says. Raises ConfigError that names ``what``."""
    if not isinstance(value, str) or not is_name(value):
        raise ConfigError(
            f"{what} {value!r} is not a name: a letter first, then letters, digits, _ . : or -, 200 at most"
        )
    return value


def check_text(value: object, what: str, longest: int = 255) -> str:
    """Check a text of 1 to ``longest`` characters. Raises PayloadError, which names ``what``."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise PayloadError(f"{what} is a text of 1 to {longest} characters, not {value!r:.80}")
    if value != storable(value):
        raise PayloadError(f"{what} has a NUL or half a surrogate pair in it, which cannot be stored: {value!r:.80}")
    return value
