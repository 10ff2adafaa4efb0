"""Who changes something, through which door, and why: what the audit records of each verb."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from scheduler.errors import ConfigError
from scheduler.model.texts import storable

MAX_NAME = 255
MAX_REASON = 1000


class Actor(NamedTuple):
    """``name``: None for the user of the process. ``via``: python, cli, page, api, mcp, http. ``reason``: their words.

    ``bulk`` and ``filter``: of one change of many tasks, in several transactions; see :func:`in_bulk`.
    """

    name: str | None = None
    via: str = "python"
    reason: str | None = None
    bulk: str | None = None
    filter: Mapping[str, Any] | None = None


_PROGRAM = Actor()
_ACTING: ContextVar[Actor] = ContextVar("schedd_actor", default=_PROGRAM)


def actor() -> Actor:
    """The actor of the changes that this thread or coroutine makes now."""
    return _ACTING.get()


def by_hand() -> bool:
    """Whether the caller has named the actor, or the door it came through: programs by themselves name neither."""
    return _ACTING.get() != _PROGRAM


@contextmanager
def acting(who: Actor) -> Iterator[None]:
    """Let every change within be this actor's. Raises ConfigError for a text that cannot be recorded."""
    check_actor(who)
    token = _ACTING.set(who)
    try:
        yield
    finally:
        _ACTING.reset(token)


@contextmanager
def acting_as(name: str | None = None, *, reason: str | None = None, via: str | None = None) -> Iterator[None]:
    """:func:`acting` with what is given here changed, and the rest as it is."""
    now = actor()
    changed = now._replace(
        name=now.name if name is None else name,
        reason=now.reason if reason is None else reason,
        via=now.via if via is None else via,
    )
    with acting(changed):
        yield


@contextmanager
def in_bulk(bulk: str, chosen: Mapping[str, Any]) -> Iterator[None]:
    """Mark every change within as part of the bulk of this name, whose tasks the filter ``chosen`` chose."""
    shown = {name: value for name, value in chosen.items() if value is not None}
    with acting(actor()._replace(bulk=bulk, filter=shown)):
        yield


def check_actor(who: Actor) -> None:
    """Raises ConfigError."""
    for what, text, longest in (("by", who.name, MAX_NAME), ("via", who.via, 40), ("reason", who.reason, MAX_REASON)):
        if text is None:
            continue
        if not isinstance(text, str) or not 1 <= len(text) <= longest or text != storable(text):
            raise ConfigError(f"{what} is a text of 1 to {longest} characters, not {text!r:.80}")
