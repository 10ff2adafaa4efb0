"""A database that can never be used: a program that does not catch the error ends with one line, like the commands."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from scheduler.errors import StoreUnavailableError, shown_as

STATUS = 5  # of schedd and schedctl, too, for a store that cannot be used


@shown_as(StoreUnavailableError)
class UnusableDatabaseError(StoreUnavailableError):
    """Only another database helps. Where in the program it was met tells nothing, so no traceback hides the text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if sys.excepthook is sys.__excepthook__:  # another's hook knows what to do with errors
            sys.excepthook = _end


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, UnusableDatabaseError) or os.environ.get("SCHEDD_DEBUG", "") not in ("", "0"):
        sys.__excepthook__(kind, error, trace)
        return
    print(f"{kind.__module__}.{kind.__qualname__}: {error}", file=sys.stderr, flush=True)
    if not hasattr(sys, "ps1"):  # a session at the prompt goes on
        raise SystemExit(STATUS)
