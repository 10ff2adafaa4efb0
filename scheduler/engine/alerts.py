"""Calls the program's ``on_dead_letter``, once for each dead letter, in a thread of its own.

It is called after the commit that stored the dead letter, so whatever it does changes nothing there; and a slow one
holds up neither turns nor leases. A process that dies in between does not call it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from scheduler.model.dead_letter import DeadLetter
from scheduler.model.outcome import Outcome
from scheduler.model.state import TaskState
from scheduler.model.times import to_datetime
from scheduler.ports import Spawner
from scheduler.store.claim import Claimed
from scheduler.store.database import Database
from scheduler.store.read_tasks import TaskRecord, get_tasks

log = logging.getLogger("scheduler.engine")

PATIENCE = 5.0  # seconds that a stop waits for calls that are still to be made

Hook = Callable[[DeadLetter], Any]


class Alerts:
    """See the module. ``spawn`` None: call at once, in the thread that tells (tests)."""

    def __init__(self, hook: Hook | None, spawn: Spawner | None) -> None:
        self.hook = hook
        # Ids of tasks that a transaction has made dead: should its commit not be answered, they are told of later.
        self.owed: set[int] = set()
        self._spawn = spawn
        self._waiting: queue.SimpleQueue[DeadLetter | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def tell(self, letter: DeadLetter) -> None:
        """Call the hook, if there is one. Never raises, never waits for it."""
        if self.hook is None:
            return
        if self._spawn is None:
            self._call(letter)
            return
        self._waiting.put(letter)
        if self._thread is None:
            try:
                self._thread = self._spawn(self._run, "schedd-alerts")
            except RuntimeError as error:  # the system's limit: the next one to tell tries again
                log.warning("on_dead_letter has to wait: %s", error)

    def tell_owed(self, database: Database) -> None:
        """Tell of those that are ``owed`` and really dead. Raises StoreUnavailableError; then they stay owed."""
        if not self.owed:
            return
        with database.read() as connection:
            records = get_tasks(connection, sorted(self.owed))
        self.owed.clear()
        for record in records:
            if record.state is TaskState.DEAD:
                self.tell(_letter_of_record(record))

    def _run(self) -> None:
        while (letter := self._waiting.get()) is not None:
            self._call(letter)

    def _call(self, letter: DeadLetter) -> None:
        hook = self.hook
        try:
            if hook is not None:
                hook(letter)
        except BaseException:
            log.exception("on_dead_letter raised", extra={"task": letter.id, "kind": letter.kind})

    def close(self) -> None:
        """Make the calls that are due, for a while, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            if thread is not threading.current_thread():  # the hook may be what stops us
                thread.join(PATIENCE)


def letter_of(c: Claimed, o: Outcome) -> DeadLetter:
    """What there is to tell of an attempt that ended dead."""
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


def _letter_of_record(task: TaskRecord) -> DeadLetter:
    """The same of a stored task."""
    return DeadLetter(
        **{name: getattr(task, name) for name in DeadLetter.__struct_fields__ if name != "finished_at"},
        finished_at=to_datetime(task.finished_at or 0),
    )
