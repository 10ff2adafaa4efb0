"""Verbs, the roles made of them, and who asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from scheduler.errors import ConfigError


class Verb(StrEnum):
    """What a route does. Every route declares one."""

    PUBLIC = "public"  # the style sheet and the page that asks who you are: for everybody
    LOOK = "look"
    REVEAL = "reveal"
    RETRY = "retry"
    CANCEL = "cancel"
    REPLAY = "replay"
    PATCH = "patch"
    PURGE = "purge"
    DRAIN = "drain"
    PAUSE = "pause"
    SET = "set"
    SCHEDULE_PAUSE = "schedule.pause"
    SCHEDULE_TRIGGER = "schedule.trigger"
    SCHEDULE_DELETE = "schedule.delete"
    EVENT_EMIT = "event.emit"
    SUBMIT = "submit"
    SILENCE = "silence"
    SAVE_VIEW = "view.save"


_OPERATOR = {
    Verb.LOOK,
    Verb.RETRY,
    Verb.CANCEL,
    Verb.REPLAY,
    Verb.PATCH,
    Verb.DRAIN,
    Verb.PAUSE,
    Verb.SCHEDULE_PAUSE,
    Verb.SCHEDULE_TRIGGER,
    Verb.EVENT_EMIT,
    Verb.SILENCE,
    Verb.SAVE_VIEW,
}
BUILT_IN: Mapping[str, frozenset[Verb]] = {
    "viewer": frozenset({Verb.LOOK}),
    "operator": frozenset(_OPERATOR),
    "admin": frozenset(set(Verb) - {Verb.PUBLIC}),
}


class Principal(NamedTuple):
    """Who asks. ``name``: as the audit records it, such as ``alice (proxy)``; ``session``: by a cookie of ours."""

    name: str
    role: str
    verbs: frozenset[Verb]
    session: bool = False

    def may(self, verb: Verb | str) -> bool:
        return Verb(verb) is Verb.PUBLIC or Verb(verb) in self.verbs

    def limited(self, verbs: Iterable[Verb]) -> Principal:
        """The same with no other verbs than these."""
        return self._replace(verbs=self.verbs & frozenset(verbs))


def read_roles(lines: Iterable[str]) -> dict[str, frozenset[Verb]]:
    """The roles there are: the built-in ones and those of ``[console] roles``, each ``name = verb, verb``.

    Raises ConfigError.
    """
    found = dict(BUILT_IN)
    for line in lines:
        name, sign, rest = line.partition("=")
        wanted = [word for word in rest.replace(",", " ").split() if word]
        if not sign or not name.strip() or not wanted:
            raise ConfigError(f'a role of [console] roles is "name = verb, verb", not {line!r:.80}')
        unknown = [word for word in wanted if word not in set(Verb) - {Verb.PUBLIC}]
        if unknown:
            known = ", ".join(verb for verb in Verb if verb is not Verb.PUBLIC)
            raise ConfigError(f"role {name.strip()!r}: there is no verb {', '.join(unknown)}; there are {known}")
        found[name.strip()] = frozenset({Verb(word) for word in wanted} | {Verb.LOOK})
    return found
