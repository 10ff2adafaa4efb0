"""The user that this process runs as: who acts, where nothing else says so."""

from __future__ import annotations

import getpass
import os
from functools import cache


@cache
def user() -> str:
    """The name of the user; ``uid 54321`` if the system knows none, as in many a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"
