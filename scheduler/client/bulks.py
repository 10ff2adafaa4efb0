"""``jobs.bulks``: changes of many tasks with a frozen scope, planned first, run in the background, stopped, undone."""

from __future__ import annotations

import builtins
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from scheduler.client.dead_letters import warn_stale
from scheduler.client.info import info
from scheduler.client.threads import CallThreads, in_thread
from scheduler.errors import ConfigError, InvalidTransitionError, SchedulerError, StoreUnavailableError
from scheduler.model.bulk import BulkOptions, BulkState, BulkVerb, ItemResult
from scheduler.model.names import check_whole
from scheduler.model.state import TaskState
from scheduler.operations import stored_bulks
from scheduler.operations.desk import Desk
from scheduler.operations.filter import Chosen, Filters, read_chosen
from scheduler.operations.stored_bulks import BulkPlan, BulkRecord

if TYPE_CHECKING:
    from scheduler.client.tasks import TaskOperations

log = logging.getLogger("scheduler")
LOOK_EVERY_S = 5.0  # for bulks that were started through another process, and for tasks that go first
MAX_LISTED = 10_000


class BulkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk. ``total``: how many tasks are in its scope; ``looked_at``: how many of them were looked at.

    Those are ``done``, ``passed`` over or ``failed``. ``dependants``: other tasks that ended, or ran again, because of
    it. ``chosen``: the filter; ``plan``: what it would have done when its scope was frozen. ``undoes``: the bulk whose
    changes it takes back. ``left``: how many tasks were not looked at yet; ``rate``: how many a second it has looked at
    since it was last started; its limit is among ``options``.
    """

    name: str
    verb: str
    state: BulkState
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    actor: str | None
    via: str
    reason: str | None
    options: dict[str, Any]
    chosen: dict[str, Any]
    plan: dict[str, Any]
    total: int
    looked_at: int
    done: int
    passed: int
    failed: int
    dependants: int
    undoes: str | None
    left: int
    rate: float | None


class BulkItemInfo(msgspec.Struct, frozen=True):
    """A task of a bulk. ``before``: its state before the change; ``result`` None: not looked at yet; ``note``: why."""

    position: int
    task_id: int
    before: TaskState | None
    result: ItemResult | None
    note: str | None


def bulk_info(record: BulkRecord, now: int) -> BulkInfo:
    """A stored bulk as programs see it at ``now`` (microseconds)."""
    options = record.options._asdict()
    del options["began_at"], options["began_from"]
    return info(
        BulkInfo,
        record,
        state=record.shown_state(now),
        looked_at=record.position,
        left=record.total - record.position,
        options=options,
    )


class Bulks:
    """``jobs.bulks``: changes of many tasks, whose scope is a list of ids that was made once."""

    def __init__(self, owner: TaskOperations) -> None:
        self._owner = owner
        self._desk = owner.desk

    @property
    def threads(self) -> CallThreads:
        """The threads in which the awaited forms wait."""
        return self._owner.threads

    def plan(
        self,
        verb: BulkVerb,
        chosen: Chosen | None = None,
        *,
        cascade: bool = False,
        force: bool = False,
        downstream: bool = True,
        **filters: Unpack[Filters],
    ) -> BulkPlan:
        """Read what a bulk would do, and change nothing. See :meth:`create`. Raises ConfigError."""
        wanted = read_chosen(self._desk, chosen, filters, ended=verb != "cancel")
        return stored_bulks.plan(self._desk, verb, wanted, BulkOptions(cascade, force, downstream))

    def create(
        self,
        verb: BulkVerb,
        chosen: Chosen | None = None,
        *,
        cascade: bool = False,
        force: bool = False,
        downstream: bool = True,
        fields: Mapping[str, Any] | None = None,
        **filters: Unpack[Filters],
    ) -> BulkInfo:
        """Freeze what a filter, a text or :class:`Filters`, chooses now, 1,000,000 tasks at most. Changes none.

        ``verb``: cancel, retry, rerun, replay (of dead letters) or purge. Without ``status`` they choose what the verb
        is for: retry chooses what failed or died. ``cascade``, ``force``: as :meth:`~Scheduler.cancel_tasks` has them.
        ``fields``: of replay, fields that each payload gets before it runs; they must fit the schema that workers have
        published. Raises ConfigError, PayloadError, UnregisteredKindError.
        """
        wanted = read_chosen(self._desk, chosen, filters, ended=verb != "cancel")
        options = BulkOptions(cascade, force, downstream, None if fields is None else dict(fields))
        return self._info(stored_bulks.create(self._desk, verb, wanted, options))

    def _info(self, record: BulkRecord) -> BulkInfo:
        return bulk_info(record, self._desk.database.now())

    def start(self, name: str, *, canary: bool = False, rate: float | None = None) -> BulkInfo:
        """Let a bulk be run by a console within a minute; :meth:`run` does both.

        One that was stopped or interrupted goes on, in the name of who says so. ``rate``: tasks a second at most.
        ``canary``: of retry, rerun and replay, one task goes first. The rest follows when that one has succeeded; else,
        or if no live worker serves it, the bulk stops, and another start goes on with the rest. Raises
        UnknownBulkError, ConfigError, InvalidTransitionError if it is done.
        """
        return self._info(stored_bulks.start(self._desk, name, canary=canary, rate=rate))

    def run(
        self,
        name: str,
        each: Callable[[BulkInfo], object] = lambda _: None,
        *,
        canary: bool = False,
        rate: float | None = None,
    ) -> BulkInfo:
        """Start a bulk, or go on with it, and change its tasks, 100 in a transaction, until it is done or stopped.

        Nothing is done twice. ``each``: called after each transaction. ``canary`` and ``rate``: as
        :meth:`start` has them; this waits until that task has ended. An error leaves the bulk interrupted.
        Raises UnknownBulkError; InvalidTransitionError if it is done or undone, or another process runs it;
        StoreUnavailableError, ConfigError.
        """

        self.start(name, canary=canary, rate=rate)
        done = stored_bulks.run(self._desk, name, each=lambda record: each(self._info(record)))
        _tell(self._desk, done)
        return self._info(done)

    def stop(self, name: str) -> BulkInfo:
        """Let a bulk stop after its present transaction. Raises UnknownBulkError, InvalidTransitionError."""
        return self._info(stored_bulks.stop(self._desk, name))

    def undo(self, name: str) -> BulkInfo:
        """Make a bulk that takes back a cancel of what had not begun; :meth:`run` runs it. The old one has ended.

        Raises UnknownBulkError; InvalidTransitionError if nothing of it can be taken back.
        """
        return self._info(stored_bulks.undo(self._desk, name))

    def get(self, name: str) -> BulkInfo:
        """One bulk. Raises UnknownBulkError."""
        with self._desk.read() as tx:
            return bulk_info(stored_bulks.get(tx, name), tx.now)

    def list(self, limit: int = 50) -> builtins.list[BulkInfo]:
        """The newest bulks. Raises ConfigError."""
        with self._desk.read() as tx:
            return [bulk_info(record, tx.now) for record in stored_bulks.newest(tx, _number(limit))]

    def items(
        self, name: str, *, result: ItemResult | str | None = None, limit: int = 100, cursor: int = -1
    ) -> builtins.list[BulkItemInfo]:
        """The tasks of a bulk, in the order in which it takes them, behind position ``cursor``.

        ``result``: only those that were done, passed over or failed. Raises UnknownBulkError, ConfigError.
        """
        try:
            wanted = None if result is None else ItemResult(result)
        except ValueError:
            there = ", ".join(one.value for one in ItemResult)
            raise ConfigError(f"result is one of {there}, not {result!r:.80}") from None
        with self._desk.read() as tx:
            stored_bulks.get(tx, name)
            found, _ = stored_bulks.items(tx, name, result=wanted, limit=_number(limit), cursor=cursor)
        return [info(BulkItemInfo, item) for item in found]

    plan_async = in_thread(plan)
    create_async = in_thread(create)
    start_async = in_thread(start)
    run_async = in_thread(run)
    stop_async = in_thread(stop)
    undo_async = in_thread(undo)
    get_async = in_thread(get)
    items_async = in_thread(items)
    list_async = in_thread(list)


def _tell(desk: Desk, done: BulkRecord) -> None:
    """Say what ran on the old ends of what it changed, and why a bulk stopped whose first task no worker runs."""
    canary, stale = stored_bulks.outcome(desk, done)
    warn_stale(stale)
    if done.state is BulkState.STOPPED and canary is not None and canary.hindered is not None:
        log.warning("bulk %s stopped: %s", done.name, canary.describe())


def _number(limit: int) -> int:
    return check_whole(limit, "limit", 1, MAX_LISTED)


class BulkRunner:
    """A thread that runs the bulks that people start, one after the other.

    One whose process has died stays interrupted until a person goes on with it.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._runner = secrets.token_hex(8)
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="schedd-bulks", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look at once: a bulk was started."""
        self._wake.set()

    def stop(self, timeout: float = 30.0) -> None:
        """End after the present transaction; what is not done is interrupted."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._desk.read() as tx:
                    waiting = stored_bulks.handed_over(tx, self._runner)
                for name in waiting:
                    if not self._stop.is_set():
                        self._run_one(name)
            except StoreUnavailableError as error:
                log.warning("bulks wait for the store: %s", error)
            self._wake.wait(LOOK_EVERY_S)
            self._wake.clear()

    def _run_one(self, name: str) -> None:
        try:
            run = stored_bulks.run
            done = run(self._desk, name, runner=self._runner, stop=self._stop, wait=self._stop.wait, patient=False)
            _tell(self._desk, done)
        except InvalidTransitionError:
            return  # another process was faster
        except StoreUnavailableError:
            raise
        except SchedulerError as error:
            log.warning("bulk %s: %s", name, error)
