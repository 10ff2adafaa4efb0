"""Kinds of schedd's own, which run programs, send mail, or speak in schedd's name: strangers get them by name only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from scheduler.errors import PayloadError, shown_as
from scheduler.model.inbox import UNREADABLE
from scheduler.model.outgoing import PREFIX
from scheduler.model.registry import Kind
from scheduler.operations.published import PublishedKind

BUILT_IN = frozenset(
    {
        *("ActionCreatorTask", "ActionDeliveryTask", "ActionVerifierTask", "BackupTask", "BatchTask", "CommandTask"),
        *("EmailTask", "FileIdGeneratorTask", "HttpTask", "ImageResizerTask", "TempFileCleanupTask"),
    }
)
"""The names of ``scheduler.tasks.BUILTIN``: what workers of older versions have published does not say it."""


@shown_as(PayloadError)
class OwnKindError(PayloadError):
    """A stranger's message asks for what is schedd's own."""


def refuse_own(kind: Kind | PublishedKind, named: Collection[str], where: str) -> None:
    """Refuse a kind of schedd's own that the settings ``where`` do not name. Raises OwnKindError."""
    if kind.name not in named and is_own(kind):
        raise OwnKindError(f"kind {kind.name} is schedd's own: it is taken here only if {where} names it")


def is_own(kind: Kind | PublishedKind) -> bool:
    """Whether a kind is schedd's own."""
    if kind.name.startswith(PREFIX) or kind.name == UNREADABLE:
        return True
    if isinstance(kind, Kind):
        return kind.built_in
    return bool(kind.record.options.get("built_in", kind.name in BUILT_IN))


def refuse_results(kind: Kind | PublishedKind, payload: Any) -> None:
    """Refuse a message of strangers that is to carry the result of a task which it names. Raises OwnKindError."""
    if kind.name.startswith(PREFIX) and isinstance(payload, Mapping) and payload.get("result_of") is not None:
        raise OwnKindError(f"result_of is not taken from outside: it would send any task's result to {kind.name}")
