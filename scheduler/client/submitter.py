"""TaskSubmitter: stores what builders build, and wakes the engines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from scheduler.client.threads import CallThreads
from scheduler.errors import DuplicateScheduleError
from scheduler.model.actor import by_hand
from scheduler.model.json_text import encode_json
from scheduler.model.recurrence import Recurrence
from scheduler.model.registry import Kind, Registry
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.operations.published import PublishedKind, read_kind
from scheduler.store import audit, outbox, schedules
from scheduler.store.db.async_connection import run_on
from scheduler.store.db.database import Database
from scheduler.store.db.tx import CallersTx, Tx
from scheduler.store.graph.cycles import refuse_unseen
from scheduler.store.schedules import ScheduleSpec
from scheduler.store.tasks.enqueue import callers_connection, enqueue, enqueue_alone, insert_alone, is_one_row

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    from scheduler.store.db.django_connection import OfDjango
    from scheduler.store.db.notifier import Notifier
    from scheduler.telemetry.otel import Tracing
    from scheduler.telemetry.sending import SendSpan

    PlainConnection = sa.Connection | Session | scoped_session[Any] | OfDjango
    AwaitedConnection = AsyncConnection | AsyncSession | async_scoped_session[Any]
    AnyConnection = PlainConnection | AwaitedConnection


log = logging.getLogger("scheduler.client")


class TaskSubmitter:
    """Stores tasks and schedules for builders, and notifies the engines."""

    def __init__(
        self,
        database: Database,
        registry: Registry,
        threads: CallThreads,
        notify: Callable[..., None],
        notifier: Callable[[], Notifier],
        notify_after_commit: Callable[[sa.Connection], None],
        start_here: Callable[[TaskSpec], TaskId | None],
        timezone: str = "UTC",
        before_schedule: Callable[[Any], Any] | None = None,
        tracing: Callable[[], Tracing] | None = None,
    ) -> None:
        self.database = database
        self.registry = registry
        self.threads = threads
        self.notify = notify  # told: whether the workers of other processes know already
        self.notifier = notifier
        self.notify_after_commit = notify_after_commit
        self.start_here = start_here  # stores what starts in this process at once; None: nothing is stored
        self.timezone = timezone
        self.before_schedule = before_schedule
        self._tracing = tracing
        self.known_sinks: frozenset[str] = frozenset()  # of the program's own configuration
        self._sinks: dict[str, bool] = {}  # those looked for, and whether a worker has each
        self._unkeyed: dict[str, Recurrence] = {}  # what this program has registered, by the names made for it

    def named(self, name: str, payload: Any) -> tuple[Kind | PublishedKind, Any, frozenset[str]]:
        """A kind, the value of a payload, and the fields that it lacks: as registered, else as workers have published.

        Raises UnregisteredKindError, PayloadError.
        """
        known = self.registry.get(name)
        if known is None:
            published = read_kind(self.database, name)
            return published, payload, published.lacking(payload)
        lacking = known.lacking(payload)
        return known, known.without(lacking).decode(encode_json(payload, f"payload of {name}")), lacking

    def check_sinks(self, kinds: Iterable[str], theirs: Tx | None = None) -> None:
        """Look whether a worker has the sinks that these kinds name in ``on_success``.

        ``theirs``: the caller's transaction, which is to store them. Raises ConfigError if workers have other sinks
        only; before any has one, it is said in the log.
        """
        telling = self.registry.telling
        for kind in {kind for kind in kinds if kind in telling and not self._sinks.get(telling[kind])}:
            sink = telling[kind]
            if self.registry.get(sink) is None:
                with self.database.read() if theirs is None else nullcontext(theirs) as tx:
                    found = outbox.check_sink(tx, sink, self.known_sinks, f'kind {kind} has on_success="{sink}", but ')
            else:
                found = True
            if not found and sink not in self._sinks:
                text = "no worker has published a sink yet: messages of kind %s wait for a daemon that has [%s]"
                log.warning(text, kind, sink, extra={"kind": kind})
            self._sinks[sink] = found

    def store_one(self, spec: TaskSpec, connection: Any = None) -> TaskId:
        """:meth:`store` a single task."""
        if self.registry.telling and connection is None:
            self.check_sinks((spec.kind,))
        send = self._send([spec])
        if send is None:
            return self._store_one(spec, connection)
        with send:
            stored = self._store_one(spec, connection)
            send.stored([stored])
            return stored

    def _store_one(self, spec: TaskSpec, connection: Any) -> TaskId:
        if connection is not None or not is_one_row(spec) or by_hand():
            return self._store([spec], connection)[0]
        new_id = self.start_here(spec)
        if new_id is not None:
            return new_id
        if self.database.dialect.name == "sqlite":
            new_id = insert_alone(self.database, spec)
            self.notify()
            return new_id
        notifier = self.notifier()
        carried = notifier.carried()
        if carried is None:
            new_id = enqueue_alone(self.database, spec, None)
        else:
            new_id = enqueue_alone(self.database, spec, carried.notice)
            notifier.was_carried(carried)
        self.notify(told=carried is not None)
        return new_id

    def store(self, specs: list[TaskSpec], connection: Any = None) -> list[TaskId]:
        """Store tasks, in the caller's transaction if there is one, and notify after the commit."""
        if self.registry.telling and connection is None:
            self.check_sinks(spec.kind for spec in specs)
        send = self._send(specs)
        if send is None:
            return self._store(specs, connection)
        with send:
            stored = self._store(specs, connection)
            send.stored(stored)
            return stored

    def _store(self, specs: list[TaskSpec], connection: Any) -> list[TaskId]:
        if connection is not None:
            return self._store_on(connection, specs)
        if len(specs) == 1 and is_one_row(specs[0]) and not by_hand():
            return [self._store_one(specs[0], None)]
        stored = self.database.change(lambda tx: _enqueue(tx, specs))
        self.notify()
        return stored

    def _store_on(self, given: Any, specs: list[TaskSpec]) -> list[TaskId]:
        with callers_connection(given) as own:
            self.database.open_beside(own)
            tx = CallersTx(own, self.database.now())
            if self.registry.telling:
                self.check_sinks((spec.kind for spec in specs), tx)
            ids = _enqueue(tx, specs)
            replacing = [i for i, s in zip(ids, specs, strict=True) if s.conflict == "replace" and s.edges]
            if replaced := [i for i in replacing if not i.created]:
                refuse_unseen(tx, replaced, self.database.read)
            self.notify_after_commit(own)
        return ids

    async def store_async(self, specs: list[TaskSpec], connection: Any = None) -> list[TaskId]:
        """:meth:`store` without blocking the event loop. ``connection``: an AsyncSession or AsyncConnection."""
        if connection is None:
            return await self.threads.call(self.store, specs)
        await self.threads.call(self.database.open)
        send = self._send(specs)
        if send is None:
            return await run_on(connection, lambda own: self._store_on(own, specs))
        with send:
            stored = await run_on(connection, lambda own: self._store_on(own, specs))
            send.stored(stored)
            return stored

    def _send(self, specs: list[TaskSpec]) -> SendSpan | None:
        """The span of storing these tasks, and its context in their headers; None if it is not traced."""
        if self._tracing is not None:
            return self._tracing().open_send(specs)
        if "opentelemetry.trace" not in sys.modules:  # as nearly always: the program does not trace
            return None
        from scheduler.telemetry.sending import send_in_span

        return send_in_span(specs)

    def register_schedule(self, spec: ScheduleSpec, *, keyed: bool) -> None:
        """Store a schedule. Without a key a second recurrence of the same task would replace the first.

        Raises DuplicateScheduleError.
        """
        self.check_sinks(spec.kinds())
        before = None if keyed else self._unkeyed.get(spec.name)
        if before is not None and before != spec.recurrence:
            raise DuplicateScheduleError(
                spec.name,
                f"is registered by this program already, as {before.describe()}: give each of several recurrences of "
                "one task a key()",
            )
        self.database.change(lambda tx: schedules.register(tx, spec))
        if not keyed:
            self._unkeyed[spec.name] = spec.recurrence
        self.notify()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Surround a program's registrations at start. If they fail, it may start again with other recurrences."""
        before = dict(self._unkeyed)
        try:
            yield
        except BaseException:
            self._unkeyed = before
            raise

    def forget_schedule(self, name: str) -> None:
        """Note that this program has deleted the schedule, so it may register another one."""
        self._unkeyed.pop(name, None)


def _enqueue(tx: Tx, specs: list[TaskSpec]) -> list[TaskId]:
    """Store tasks, and record them in the audit where the caller has named the actor (``jobs.acting``)."""
    ids = enqueue(tx, specs)
    if by_hand():
        audit.record_submit(tx, specs, ids)
    return ids
