"""Calls of the C library that Python does not offer."""

from __future__ import annotations

import sys
from typing import Any


def call(name: str, *args: Any) -> int | None:
    """What the call returns; None where the system has none of this name."""
    if sys.platform == "win32":
        return None
    import ctypes

    try:
        return int(getattr(ctypes.CDLL(None), name)(*args))
    except (OSError, AttributeError):
        return None
