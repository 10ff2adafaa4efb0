"""The user that this process runs as: who acts, where nothing else says so."""

from __future__ import annotations

import getpass
from functools import cache

from scheduler.system.processes import user_id


@cache
def user() -> str:
    """The name of the user; ``uid 54321`` if the system knows none, as in many a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {user_id()}"
