"""Errors as they are stored: one line of text, a class name, and a fingerprint that groups like with like."""

from __future__ import annotations

import hashlib
import posixpath
import traceback
from types import TracebackType

from scheduler.model.outcome import Failure

MAX_TEXT = 2000
_MAX_FRAMES = 20


def describe(error: BaseException) -> Failure:
    """What the store keeps of an error."""
    name = type(error).__name__
    said = " ".join(str(error).split())
    text = f"{name}: {said}" if said else name
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    text = text.encode("utf-8", "replace").decode().replace("\x00", "�")
    status = getattr(error, "status", None)
    return Failure(text, name, fingerprint(error), status if isinstance(status, int) else None)


def fingerprint(error: BaseException) -> str:
    """12 hex digits over the error's type and its frames as (file name, function), without lines or values."""
    parts = [f"{type(error).__module__}.{type(error).__qualname__}"]
    parts += _frames(error.__traceback__)
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:12]


def _frames(trace: TracebackType | None) -> list[str]:
    frames = []
    while trace is not None and len(frames) < _MAX_FRAMES:
        code = trace.tb_frame.f_code
        frames.append(f"{posixpath.basename(code.co_filename)}:{code.co_name}")
        trace = trace.tb_next
    return frames


def traceback_text(error: BaseException, skip: int = 1) -> str:
    """The traceback without our own first frames, for the attempt's log."""
    trace = error.__traceback__
    for _ in range(skip):
        if trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace, limit=-_MAX_FRAMES))
