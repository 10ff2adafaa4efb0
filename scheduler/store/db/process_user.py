"""The user that this process runs as: who acts, where nothing else says so."""

from __future__ import annotations

import getpass
from functools import cache


@cache
def user() -> str | None:
    """The name of the user, None if the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
