"""Whether the rules of time zones have changed on this machine, as an update of its packages does under a daemon."""

from __future__ import annotations

import os
import zoneinfo
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from scheduler.model.zoned import forget_zones, zones_read


class ZoneFiles:
    """The files of the zones in use, as they were when they were last looked at."""

    def __init__(self) -> None:
        self._seen: dict[str, object] | None = None

    def refresh(self) -> None:
        """Have the zones read anew if one of their files is another now; the first time in any case."""
        now = {name: _state(name) for name in zones_read()}
        if self._seen is None or any(self._seen.get(name, state) != state for name, state in now.items()):
            forget_zones()
        self._seen = (self._seen or {}) | now


def _state(name: str) -> object:
    """Which file has the zone's rules, and which state of it; found as ZoneInfo finds it."""
    for root in zoneinfo.TZPATH:
        with suppress(OSError, ValueError):
            state = os.stat(os.path.join(root, name))
            return root, state.st_mtime_ns, state.st_size, state.st_ino
    try:
        return version("tzdata")  # the package is read where the system has no rules
    except PackageNotFoundError:
        return None
