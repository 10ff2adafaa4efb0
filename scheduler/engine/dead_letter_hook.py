"""Calls the program's ``on_dead_letter`` for each dead letter, in a thread of its own.

The call comes after the commit that stored the dead letter. A slow hook delays neither dispatch nor leases. A process
that dies between the commit and the call does not call it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from scheduler.model.outcome import DeadLetter, Outcome
from scheduler.model.state import TaskState
from scheduler.model.times import to_datetime
from scheduler.ports import Spawner
from scheduler.store.db.database import Database
from scheduler.store.read.tasks import TaskRecord, get_tasks
from scheduler.store.tasks.claim import Claimed

log = logging.getLogger("scheduler.engine")

CLOSE_TIMEOUT_S = 5.0  # how long a stop waits for the calls that are left

Hook = Callable[[DeadLetter], Any]


class DeadLetterHook:
    """Queues dead letters for the hook. ``spawn`` None: call it at once, in the caller's thread (tests)."""

    def __init__(self, hook: Hook | None, spawn: Spawner | None) -> None:
        self.hook = hook
        # Ids of tasks that a transaction has made dead: kept until its commit is known.
        self.pending: set[int] = set()
        self.counts: dict[str, int] | None = None  # how many there were, by kind; None: not asked for
        self._spawn = spawn
        self._waiting: queue.SimpleQueue[DeadLetter | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def notify(self, letter: DeadLetter) -> None:
        """Count it, and call the hook, if there is one. Never raises, never waits for it."""
        if self.counts is not None:
            self.counts[letter.kind] = self.counts.get(letter.kind, 0) + 1
        if self.hook is None:
            return
        if self._spawn is None:
            self._call(letter)
            return
        self._waiting.put(letter)
        if self._thread is None:
            try:
                self._thread = self._spawn(self._run, "schedd-alerts")
            except RuntimeError as error:  # the system's limit: the next notify tries again
                log.warning("on_dead_letter has to wait: %s", error)

    def notify_pending(self, database: Database) -> None:
        """Notify of pending tasks that are dead. Raises StoreUnavailableError; then they stay pending."""
        if not self.pending:
            return
        with database.read() as tx:
            records = get_tasks(tx, sorted(self.pending))
        self.pending.clear()
        for record in records:
            if record.state is TaskState.DEAD:
                self.notify(_dead_letter_of_record(record))

    def _run(self) -> None:
        while (letter := self._waiting.get()) is not None:
            copy_context().run(self._call, letter)

    def _call(self, letter: DeadLetter) -> None:
        hook = self.hook
        try:
            if hook is not None:
                hook(letter)
        except BaseException:
            log.exception("on_dead_letter raised", extra={"task": letter.id, "kind": letter.kind})

    def close(self) -> None:
        """Make the calls that are left, for a few seconds, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            if thread is not threading.current_thread():  # the hook may be what stops us
                thread.join(CLOSE_TIMEOUT_S)


def dead_letter_of(c: Claimed, o: Outcome) -> DeadLetter:
    """The dead letter of an attempt that ended dead."""
    f = o.failure
    return DeadLetter(
        id=c.id,
        kind=c.kind,
        queue=c.queue,
        key=c.key,
        correlation=c.correlation or str(c.id),
        attempt=c.attempt,
        error=f.text if f else None,
        error_class=f.error_class if f else None,
        fingerprint=f.fingerprint if f else None,
        status_code=f.status if f else None,
        finished_at=to_datetime(o.finished_at),
    )


def _dead_letter_of_record(task: TaskRecord) -> DeadLetter:
    return DeadLetter(
        **{name: getattr(task, name) for name in DeadLetter.__struct_fields__ if name != "finished_at"},
        finished_at=to_datetime(task.finished_at or 0),
    )
