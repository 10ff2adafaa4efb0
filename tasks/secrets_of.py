"""Secrets that a request needs, kept out of payloads, logs and errors: a task has their names, the host their values.

``[http] secrets = ["crm-token@api.example.com"]`` lets requests to that host, and to no other, use the file
``crm-token`` in ``[http] secrets_dir`` (by default systemd's credentials). A header says ``Bearer ${crm-token}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler import PermanentError
from scheduler.tasks.settings import section

_PLACE = re.compile(r"\$\{([A-Za-z0-9][A-Za-z0-9_.-]*)\}")
HIDDEN = "***"


class Secrets:
    """Puts values in for names, and takes them out of texts again."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        http = section(settings, "http")
        self._bound = set(http.get("secrets") or ())
        self._directory = http.get("secrets_dir")
        self._used: set[str] = set()

    def filled(self, text: str, host: str) -> str:
        """The text with every ``${name}`` replaced. Raises PermanentError for what this host may not be told."""

        def value(match: re.Match[str]) -> str:
            name = match[1]
            if f"{name}@{host.lower()}" not in self._bound:
                raise PermanentError(f"{host} may not be told the secret {name!r}: [http] secrets has no {name}@{host}")
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

    def hidden(self, text: str) -> str:
        """The text without the values that were put in, in case the other side repeats them."""
        for value in self._used:
            text = text.replace(value, HIDDEN)
        return text


def needs_secret(text: str) -> bool:
    return _PLACE.search(text) is not None
