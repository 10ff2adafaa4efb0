"""Errors as they are stored: one line of text, a class name, and a fingerprint that groups like with like."""

from __future__ import annotations

import hashlib
import posixpath
import traceback
from types import TracebackType

from scheduler.model.outcome import Failure
from scheduler.model.texts import storable

MAX_TEXT = 2000
_MAX_FRAMES = 20


def describe(error: BaseException) -> Failure:
    """Make the Failure that the store keeps of an error."""
    name = storable(type(error).__name__)
    try:
        message = storable(" ".join(str(error).split()))
    except BaseException:  # a user's error whose text cannot be made
        message = "(its text cannot be made)"
    text = f"{name}: {message}" if message else name
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    return Failure(text, name, fingerprint(error), _status(error))


def _status(error: BaseException) -> int | None:
    try:
        status = getattr(error, "status", None)
    except BaseException:  # its own __getattr__ may raise anything
        return None
    if isinstance(status, int) and not isinstance(status, bool) and 0 <= status < 2**31:
        return int(status)
    return None


def fingerprint(error: BaseException) -> str:
    """12 hex digits over the error's type and frames as (file name, function), without lines or values.

    An error whose place in the code says nothing of its cause has a ``schedd_cause``, which counts too.
    """
    parts = [f"{type(error).__module__}.{type(error).__qualname__}", *_cause(error)]
    parts += _frames(error.__traceback__)
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:12]


def _cause(error: BaseException) -> list[str]:
    try:
        found = getattr(error, "schedd_cause", None)
    except BaseException:  # its own __getattr__ may raise anything
        return []
    return [found] if isinstance(found, str) else []


def _frames(trace: TracebackType | None) -> list[str]:
    frames: list[str] = []
    while trace is not None and len(frames) < _MAX_FRAMES:
        code = trace.tb_frame.f_code
        frames.append(f"{posixpath.basename(code.co_filename)}:{code.co_name}")
        trace = trace.tb_next
    return frames


def traceback_text(error: BaseException) -> str:
    """The traceback without our own first frame, for the attempt's log."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace, limit=-_MAX_FRAMES))
    except BaseException:  # its own __getattr__ is asked for notes, and may raise anything
        return "".join(traceback.format_tb(trace, limit=-_MAX_FRAMES)) + describe(error).text + "\n"
