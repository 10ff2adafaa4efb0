"""Secrets that a request needs, kept out of payloads, logs and errors: a task has their names, the host their values.

``[http] secrets = ["crm-token@api.example.com"]`` lets requests to that host, and to no other, use the file
``crm-token`` in ``[http] secrets_dir`` (by default systemd's credentials). A header says ``Bearer ${crm-token}``. To
another machine it goes encrypted only, unless the entry says otherwise: ``crm-token@http://api.example.com``.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scheduler import PermanentError
from scheduler.tasks.settings import section

_PLACE = re.compile(r"\$\{([A-Za-z0-9][A-Za-z0-9_.-]*)\}")
HIDDEN = "***"


class Secrets:
    """Puts values in for names, and takes them out of texts again."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        http = section(settings, "http")
        self._bound = set(map(_lowered, http.get("secrets") or ()))
        self._directory = http.get("secrets_dir")
        self._used: set[str] = set()

    def filled(self, text: str, scheme: str, host: str) -> str:
        """The text with every ``${name}`` replaced. Raises PermanentError for what this host may not get, or not
        by this scheme."""

        def value(match: re.Match[str]) -> str:
            name, there = match[1], host.lower()
            entries = {f"{name}@{there}", f"{name}@https://{there}", f"{name}@http://{there}"} & self._bound
            if not entries:
                raise PermanentError(f"{host} may not get the secret {name!r}: [http] secrets has no {name}@{host}")
            if scheme != "https" and f"{name}@http://{there}" not in entries and not _is_here(there):
                raise PermanentError(
                    f"the secret {name!r} would go to {host} unencrypted: use https://, "
                    f"or allow that with {name}@http://{host} in [http] secrets"
                )
            if self._directory is None:
                raise PermanentError(
                    "there are no secrets: neither [http] secrets_dir nor $CREDENTIALS_DIRECTORY is set"
                )
            try:
                found = Path(self._directory, name).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise PermanentError(f"the secret {name!r} cannot be read: {type(error).__name__}") from None
            if found:
                self._used.add(found)
            return found

        return _PLACE.sub(value, text)

    def hidden(self, text: str, *, cut: bool = False) -> str:
        """The text without the values that were put in, in case the other side repeats them, as they are or encoded.

        ``cut``: the text went on, so that its end may be the beginning of a value.
        """
        return _without(self._forms(), text, cut)

    def hidden_bytes(self, data: bytes, *, cut: bool = False) -> bytes:
        """The same for what may be no text."""
        if not self._used:
            return data
        forms = {form.encode().decode("latin-1") for form in self._forms()}
        return _without(forms, data.decode("latin-1"), cut).encode("latin-1")

    def _forms(self) -> set[str]:
        return {form for value in self._used for form in forms_of(value)}


def _without(forms: set[str], text: str, cut: bool) -> str:
    for form in sorted(forms, key=len, reverse=True):
        text = re.sub(re.escape(form), HIDDEN, text, flags=re.IGNORECASE)  # a host's name comes in lower case
    longest = max((_overlap(text, form) for form in forms), default=0) if cut else 0
    return text[: len(text) - longest] + HIDDEN if longest else text


def forms_of(value: str) -> set[str]:
    """A value, and how it looks in JSON, in a URL and in base64."""
    quoted, encoded = json.dumps(value, ensure_ascii=False)[1:-1], base64.b64encode(value.encode()).decode()
    return {value, quoted, quote(value), quote(value, safe=""), encoded, encoded.rstrip("=")}


def _overlap(text: str, form: str) -> int:
    """How many characters at the end of the text are the beginning of ``form``."""
    text, form = text[-len(form) :].lower(), form.lower()
    return next((n for n in range(len(text), 0, -1) if form.startswith(text[-n:])), 0)


def _lowered(entry: str) -> str:
    name, at, host = entry.partition("@")
    return name + at + host.lower()


def _is_here(host: str) -> bool:
    """Whether what is sent there stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def needs_secret(text: str) -> bool:
    return _PLACE.search(text) is not None
