"""``jobs.pause`` and ``jobs.resume``: keep a queue, a kind or everything from being claimed, over the whole fleet."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.client.threads import in_thread
from scheduler.errors import ConfigError
from scheduler.model.actor import acting_as
from scheduler.operations import pauses
from scheduler.operations.desk import Desk
from scheduler.operations.pauses import PauseInfo, Scope, scopes


class PauseOperations:
    """The part of the Scheduler that pauses and resumes. Needs ``desk`` and ``threads``."""

    desk: Desk

    def pause(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        source: str | None = None,
        all: bool = False,  # the name is part of the interface
        reason: str | None = None,
        by: str | None = None,
    ) -> bool:
        """Let no worker of the fleet claim tasks of a queue, of a kind, or any task, until :meth:`resume`.

        ``source``: nothing is received from this one. Takes effect within a second. Running tasks go on, schedules go
        on making tasks, and what was claimed and has not begun goes back without using an attempt. ``reason`` and
        ``by`` are shown by ``schedctl status``, ``show`` and the audit. Returns False if it was paused already. Raises
        ConfigError unless exactly one of ``queue``, ``kind``, ``source`` and ``all`` is given; StoreUnavailableError.
        """
        chosen = _scopes(queue, kind, source, all)
        with acting_as(by, reason=reason):
            return pauses.pause(self.desk, chosen).changed[chosen[0]]

    def resume(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        source: str | None = None,
        all: bool = False,  # the name is part of the interface
        reason: str | None = None,
        by: str | None = None,
    ) -> bool:
        """End the pause of a queue, of a kind, or of all; ``all`` leaves pauses of single queues and kinds as they are.

        Returns False if there was none. Raises as :meth:`pause`.
        """
        chosen = _scopes(queue, kind, source, all)
        with acting_as(by, reason=reason):
            return pauses.resume(self.desk, chosen).changed[chosen[0]]

    def pauses(self) -> Sequence[PauseInfo]:
        """All pauses, the oldest first. Raises StoreUnavailableError."""
        return pauses.in_effect(self.desk)

    pause_async = in_thread(pause)
    resume_async = in_thread(resume)
    pauses_async = in_thread(pauses)


def _scopes(queue: str | None, kind: str | None, source: str | None, everything: bool) -> list[Scope]:
    """What is to be paused or resumed. Raises ConfigError unless it is exactly one."""
    given: list[list[str]] = [[] if name is None else [name] for name in (queue, kind, source)]
    if sum(map(len, given)) + bool(everything) != 1:
        raise ConfigError("say exactly one of queue, kind, source and all")
    return scopes(queues=given[0], kinds=given[1], sources=given[2], everything=everything)
