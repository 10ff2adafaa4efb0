"""What the error texts of different tasks and kinds have in common: the text without what varies. Pure."""

from __future__ import annotations

import re

LONGEST = 200
_VARIES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE), "URL"),
    (re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`"), "…"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE), "ID"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(\.[\w-]+)+\b"), "ADDRESS"),
    (re.compile(r"\[?\b[0-9a-f]{0,4}(:[0-9a-f]{0,4}){3,7}\b\]?(:\d+)?", re.IGNORECASE), "HOST"),
    (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b"), "HOST"),
    (re.compile(r"\b(?=[a-z0-9-]*[a-z])[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,}(:\d+)?\b(?!\()", re.IGNORECASE), "HOST"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{6,}\b", re.IGNORECASE), "ID"),
    (re.compile(r"(?<![A-Za-z])[-+]?\d+([.,]\d+)*"), "N"),
)
_STATUS = re.compile(r"(?<=status )[1-5]\d\d\b|(?<=answered )[1-5]\d\d\b|(?<=code )\d{1,3}\b|(?<=HTTP )[1-5]\d\d\b")
_ASIDE = str.maketrans("0123456789", "".join(chr(0xE000 + digit) for digit in range(10)))  # no text has these
_BACK = {there: chr(here) for here, there in _ASIDE.items()}


def common_text(error_class: str | None, error: str | None) -> str:
    """The error without ids, numbers, hosts, addresses and quoted values; status and exit codes stay.

    ``TimeoutError: no answer from HOST within N s``.
    """
    text = " ".join((error or error_class or "no error recorded").split())
    text = _STATUS.sub(lambda found: found.group().translate(_ASIDE), text)
    for pattern, name in _VARIES:
        text = pattern.sub(name, text)
    return text.translate(_BACK)[:LONGEST]
