"""Removes secrets from URLs and texts that are shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HIDDEN = "***"
_SECRET = "pass|pwd|secret|token|key"
_SHOWABLE = frozenset({"sslkey"})  # the path of a file
_USER_INFO = r"(://[^:/?@\s]*):.*@"
_HOST = r"://(?:[^:/]*(?::[^@]*)?@)?([^/?]*)"  # as SQLAlchemy reads it: a password ends at the first @
TWO_SLASHES = "the path begins after a third slash: sqlite:///{0}, or sqlite:////{0} from the root"
RAW_AT = "its password has an @: write it as %40 there, and a percent sign as %25"
_NAMED = (  # the patterns are compiled at the first text
    rf"(?i)((?<![\w-])(?!(?:{'|'.join(_SHOWABLE)})\b)[\w-]*(?:{_SECRET})\w*=)"
    r"""('(?:[^'\\]|\\.)*'|"[^"]*"|[^&\s,;'")]+)"""
)
_QUOTED = r"%([0-9A-Fa-f]{2})"
_SHORTEST = 4  # a shorter secret would be found in every other word


def shown_url(url: str) -> str:
    """The URL without the password of ``user:password@``, and without values of queries named like a secret.

    It removes rather too much than too little, also from a text that only resembles a URL."""
    scheme, found, rest = url.partition("://")
    if not found:
        head, at, tail = url.rpartition("@")
        return redact(f"{_HIDDEN}@{tail}" if at and ":" in head else url)
    place, asked, query = rest.partition("?")
    if "@" in query and (":" in place or "@" not in place):
        # The end of a password with a question mark looks the same as a query's value.
        return f"{scheme}://{_HIDDEN}"
    place = re.sub(_USER_INFO, rf"\1:{_HIDDEN}@", f"://{place}").removeprefix("://")
    return f"{scheme}://{place}{asked}{'&'.join(map(_shown_pair, query.split('&')))}"


def has_raw_at(url: str) -> bool:
    """Whether a password has an unquoted ``@``: what is behind it would be read, and shown, as the host."""
    host = re.search(_HOST, url)
    return host is not None and "@" in host[1]


def is_secret(name: str) -> bool:
    """Whether a parameter of this name is a secret, or says where one is."""
    return re.search(_SECRET, name.lower()) is not None and name.lower() not in _SHOWABLE


def _shown_pair(pair: str) -> str:
    name, sign, _ = pair.partition("=")
    meant = re.sub(_QUOTED, lambda code: chr(int(code[1], 16)), name)
    return f"{name}={_HIDDEN}" if sign and is_secret(meant) else pair


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the passwords of its URLs, and without values that are named like a secret.

    ``secrets``: further texts to remove, wherever they stand.
    """
    for secret in sorted({s for s in secrets if len(s) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return re.sub(_USER_INFO, rf"\1:{_HIDDEN}@", re.sub(_NAMED, rf"\1{_HIDDEN}", text))
