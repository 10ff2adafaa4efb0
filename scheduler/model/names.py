"""Names of kinds and queues."""

from __future__ import annotations

import re

from scheduler.errors import ConfigError

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
