"""Pauses of everything, of queues or of kinds: no worker claims their tasks."""

from __future__ import annotations

from typing import NamedTuple, Self

import msgspec

ALL, QUEUE, KIND = "all", "queue", "kind"
SOURCE = "source"  # of messages: nothing is received from it


class Pauses(NamedTuple):
    """What is paused now. False in a condition if nothing is."""

    everything: bool = False
    queues: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()

    @classmethod
    def of(cls, text: str | None) -> Self:
        """From JSON pairs (scope, name); None: nothing is paused."""
        pairs: list[tuple[str, str]] = [] if text is None else msgspec.json.decode(text, type=list[tuple[str, str]])
        return cls(
            any(scope == ALL for scope, _ in pairs),
            frozenset(name for scope, name in pairs if scope == QUEUE),
            frozenset(name for scope, name in pairs if scope == KIND),
        )

    def __bool__(self) -> bool:
        return self.everything or bool(self.queues) or bool(self.kinds)

    def hold(self, queue: str, kind: str) -> bool:
        """Whether tasks of this kind in this queue are not to be claimed."""
        return self.everything or queue in self.queues or kind in self.kinds

    def describe(self) -> str:
        """``everything``; ``queue mail, kind Report``; ``nothing``."""
        if self.everything:
            return "everything"
        named = [f"queue {name}" for name in sorted(self.queues)] + [f"kind {name}" for name in sorted(self.kinds)]
        return ", ".join(named) or "nothing"
