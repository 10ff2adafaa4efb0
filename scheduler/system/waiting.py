"""Waiting for a descriptor: by poll(2), as select(2) takes none above 1,023; on Windows select takes any socket."""

from __future__ import annotations

import math
import select
import sys
from collections.abc import Callable
from typing import Any

Wait = Callable[[float | None], bool]


def waits_for(file: Any, *, writing: bool = False) -> Wait:
    """A function that waits until the file can be read, or written; False if the seconds are over before."""
    if sys.platform == "win32":

        def select_one(seconds: float | None) -> bool:
            ready = select.select([] if writing else [file], [file] if writing else [], [], seconds)
            return any(ready)

        return select_one
    poll = select.poll()
    poll.register(file, select.POLLOUT if writing else select.POLLIN)

    def poll_one(seconds: float | None) -> bool:
        return bool(poll.poll(None if seconds is None else max(0, math.ceil(seconds * 1000))))

    return poll_one
