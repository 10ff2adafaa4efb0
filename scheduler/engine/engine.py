"""The engine's loop: one worker in one process waits, wakes, dispatches, keeps its lease, drains, stops."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from scheduler.backoff import Backoff, LogOnce
from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.capture import Capture
from scheduler.engine.attempt.outcomes import outcome_at_stop
from scheduler.engine.attempt.runtime import StoredDrafts
from scheduler.engine.dead_letter_hook import DeadLetterHook, Hook
from scheduler.engine.direct_starts import DirectStarts
from scheduler.engine.dispatch.completion_thread import CompletionThread
from scheduler.engine.dispatch.cycle import DispatchCycle
from scheduler.engine.maintenance.gauges import Gauges
from scheduler.engine.maintenance.lease import LeaseWatchdog, WorkerLease
from scheduler.engine.maintenance.periodic import CANCEL_EVERY, EARLY_FRACTION, PeriodicWork
from scheduler.engine.maintenance.registration import WorkerRegistration
from scheduler.engine.options import Adjustable, EngineOptions
from scheduler.engine.slots import InlineSlots, make_slots, resize_slots, waiting_since
from scheduler.engine.state import EngineState
from scheduler.errors import StoreReplacedError, StoreUnavailableError
from scheduler.model.outcome import Outcome
from scheduler.model.registry import Registry
from scheduler.ports import FOREVER, SECOND, Spawner, random_incarnation, spawn_thread
from scheduler.store import workers
from scheduler.store.db.database import Database
from scheduler.store.db.deadline import in_time
from scheduler.store.db.errors import StoreError
from scheduler.store.db.notifier import Notifier
from scheduler.store.db.pg_connections import let_go
from scheduler.store.durable import waits
from scheduler.store.read import counts
from scheduler.telemetry.health import Vitals, is_in_store

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.model.spec import TaskId, TaskSpec
    from scheduler.telemetry.otel import Tracing
    from scheduler.telemetry.registry import MetricsRegistry

log = logging.getLogger("scheduler.engine")

URGENT_MIN_OUTCOMES = 50  # with more unwritten outcomes, high tasks are claimed first
WAKE_MORE_AFTER_S = 0.005  # seconds that attempts wait in a pool before more slots are woken
YIELD_S = 0.0002
LOCKED_RETRY_S = 0.1  # until outcomes are retried whose rows another transaction holds
OUTAGE_BACKOFF_S = (0.1, 2.0)  # between tries while the database is away: first, longest
RELEASE_DELAY_US = 2 * SECOND
MAX_COUNTED = 10_000  # tasks of each state that the first log line counts
FIND_HOLDER_S = 1.0  # for finding the holder of a lock
JOIN_TIMEOUT_S = 15.0  # for the end of a cycle
HAND_OVER_S = 1.0  # for callers who store what has a slot reserved; what comes later, others reclaim


class Engine:
    """One worker. ``inline``: no threads; the caller runs attempts between calls of :meth:`step` (tests)."""

    state_type = EngineState

    def __init__(
        self,
        database: Database,
        registry: Registry,
        options: EngineOptions,
        *,
        state: Any = None,
        settings: dict[str, Any] | None = None,
        around_run: Callable[[Any], AbstractContextManager[Any]] | None = None,
        on_dead_letter: Hook | None = None,
        drafts: StoredDrafts | None = None,
        tracing: Tracing | None = None,
        rng: random.Random | None = None,
        spawn: Spawner = spawn_thread,
        incarnation: Callable[[], str] = random_incarnation,
        inline: bool = False,
        version: str = "",
    ) -> None:
        self.database = database
        self.engine_state = self.state_type(
            database, registry, options, state=state, settings=settings, around_run=around_run, rng=rng
        )
        self.engine_state.drafts = drafts
        self.engine_state.tracing = tracing
        self.engine_state.dead_letter_hook = DeadLetterHook(on_dead_letter, None if inline else spawn)
        self.options = options
        self.inline = inline
        self._spawn = spawn
        self.slots = make_slots(self.engine_state, spawn, inline=inline)
        self.engine_state.resize = lambda pools: resize_slots(
            self.slots, self.engine_state, spawn, pools, inline=inline
        )
        beside = database.dialect.name == "postgresql"
        completion_thread = CompletionThread(database, options.lease, None if inline else spawn) if beside else None
        self.dispatch = DispatchCycle(self.engine_state, self.slots, completion_thread)
        self.lease = WorkerLease(self.engine_state, lapses=not inline)
        self.guard = LeaseWatchdog(
            self.engine_state, self._last_sign, lambda: self._thread.ident if self._thread else None
        )
        self.periodic = PeriodicWork(self.engine_state, self.dispatch, self.lease)
        self.registration = WorkerRegistration(
            self.engine_state,
            self.dispatch,
            self.periodic,
            self.guard,
            spawn=None if inline else spawn,
            new_incarnation=incarnation,
            version=version,
        )
        self.direct_starts = DirectStarts(self.dispatch, self.periodic, lambda: self.claims)
        self.draining = False  # it is about to stop
        self.replaced: StoreReplacedError | None = None  # why it has ended by itself
        self.outage: str | None = None  # why the database is away
        self.handed_back: list[int] = []  # tasks released while they ran, at a hard stop
        self.cycles = 0
        self._connection: sa.Connection | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._stopping = threading.Lock()
        self._closed = False
        self._drained = threading.Event()  # draining, and no cycle from before is under way
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._last_cycle_at = 0.0
        self._step_ended_at = self.engine_state.monotonic()  # when the last step ended
        self._next_due = 0
        self._needs_scan = True  # lanes that were empty may have work now
        self._has_more = False  # the last cycle left known work
        # Other workers reclaim our tasks after a lease.
        self._backoff = Backoff(OUTAGE_BACKOFF_S[0], min(OUTAGE_BACKOFF_S[1], options.renew_every))
        self._renew_every = options.renew_every
        self._logged = LogOnce()
        self.capture = Capture(everything=options.capture_root)
        if inline:
            self.engine_state.inline = self.step_without_claims
        self._answered_at = self.engine_state.monotonic()  # when the last round ended that the database answered
        if self.metrics is not None:
            gauges = Gauges(self.engine_state, self.slots, self.loop_age, lambda: self._backoff.current > 0, version)
            self.metrics.kinds, self.metrics.gauges = gauges.kinds, gauges.read
            self.engine_state.dead_letter_hook.counts = self.metrics.dead_letters

    # starting

    @property
    def metrics(self) -> MetricsRegistry | None:
        """This worker's own metrics; None if they are off."""
        return self.engine_state.metrics

    def health(self) -> Vitals:
        """What the health checks look at. From any thread; asks no database."""
        now, beside = self.engine_state.monotonic(), self.dispatch.completer.completion_thread
        return Vitals(
            running=self.is_running(),
            started=self._ready.is_set(),
            draining=self.drained,
            loop_age=now - self._last_sign(),
            answer_age=now - max(self._answered_at, self.database.answered_at),
            in_store=any(map(is_in_store, (self._thread, None if beside is None else beside.thread))),
            lease=self.options.lease,
        )

    @property
    def worker(self) -> int:
        """The id of this engine's row in the workers table; 0 before it has one."""
        return self.registration.worker

    @property
    def claims(self) -> bool:
        """Whether it takes new work: not drained, nor too far from the database for its lease, and knows its schema."""
        state = self.engine_state
        return not self.drained and state.lease_needed is None and state.unknown_schema is None

    @property
    def drained(self) -> bool:
        """Whether it is about to stop, or an operator has drained it."""
        return self.draining or self.registration.drain_requested

    def loop_age(self) -> float:
        """Seconds since the loop's last round; it goes on while the database is away."""
        return self.engine_state.monotonic() - self._last_cycle_at

    def _last_sign(self) -> float:
        """When the loop last went round, or got an answer from the server (monotonic)."""
        return max(self._last_cycle_at, self.database.answered_at)

    def start(self) -> None:
        """Start the loop in a thread of its own. Raises StoreUnavailableError if the database cannot be opened."""
        self._open()
        self._last_cycle_at = self.engine_state.monotonic()
        self.capture.attach()
        self._thread = self._spawn(self._run, "schedd-engine")
        self.guard.start(self._spawn)

    def _open(self) -> None:
        self.database.open()
        shortage = self.database.shortage()
        if shortage is not None:
            log.error("%s", shortage)

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait for the end of the first dispatch cycle. False if it did not come in time."""
        return self._ready.wait(timeout)

    def wait_ended(self) -> None:
        """Wait until the loop has ended."""
        self._ended.wait()

    def is_running(self) -> bool:
        return self._thread is not None and not self._ended.is_set()

    def wake(self) -> None:
        """There may be new work."""
        self.engine_state.wake()

    def start_here(self, spec: TaskSpec) -> TaskId | None:
        """Store a task that starts here at once, if it may; see ``DirectStarts.store``."""
        ready = self._thread is not None and self._ready.is_set() and not (self._stop.is_set() or self._backoff.current)
        return self.direct_starts.store(spec) if ready else None

    def reconfigure(self, pools: Mapping[str, tuple[int, int]], max_concurrent: int) -> None:
        """Have these slots (threads, async slots) from the next look on, and hold at most so many tasks; 0: no bound.

        Live settings hold over it. From any thread.
        """
        self.engine_state.configured = Adjustable(dict(pools), max_concurrent)
        self.look_soon()
        self.wake()

    def look_soon(self) -> None:
        """Read what is due, what is paused, and the live settings, before the next claim."""
        self.periodic.timers.bring_forward("looks")

    @property
    def notifier(self) -> Notifier:
        """The notifier that wakes the engines of other processes."""
        return self.registration.notifier

    def on_restart(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` when an operator wants this program to end and to start anew."""
        self.registration.on_restart = tell

    def hung_pool(self) -> str | None:
        """A pool whose slots of one type are all taken by handlers that hang; None if there is none."""
        return self.periodic.hung.full_pool()

    def only_hung(self) -> bool:
        """Whether every held attempt hangs, so that waiting is useless."""
        return self.periodic.hung.only_hung()

    def _conn(self) -> sa.Connection:
        connection = self._connection
        if connection is None or connection.closed or connection.invalidated or not self.database.trusts(connection):
            self._drop_connection()
            self._connection = connection = self.database.connect(idle_limit=self.options.lease)
        return connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        let_go(connection)
        if self.dispatch.completer.completion_thread is not None:
            self.dispatch.completer.completion_thread.drop_connection()

    # going round

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                pause = self._round()
                if self._stop.is_set():
                    break
                self.engine_state.sleep(pause)
        except BaseException:
            log.critical("the engine's loop failed", exc_info=True)
            raise
        finally:
            self._ended.set()
            self._ready.set()

    def _round(self) -> float:
        """One round: upkeep that is due, and a dispatch cycle if needed. Returns seconds to sleep."""
        self._last_cycle_at = self.engine_state.monotonic()
        if self.draining:
            self._drained.set()
        try:
            pause = self.step()
            self._answered_at = self._step_ended_at
            if self._backoff.current:
                log.info("the database is back")
                self.outage, self.engine_state.failing = None, ""
                self._backoff.reset()
                self._logged.clear()
            if not self._ready.is_set():
                self._ready.set()
                self._report_start()
            return pause
        except StoreReplacedError as error:
            self._count_error(error)
            self._end_for_good(error)
            return 0.0
        except StoreUnavailableError as error:
            self._count_error(error)
            if not (isinstance(error, StoreError) and error.misfit and self._meets_unknown_schema()):
                self._log_outage(error)
            self.lease.postpone_reaping()  # it may be away for the others, too
            self.periodic.timers.bring_forward("renew")  # it is back when it has taken a write, not before
            failing = _brief(error)
        except Exception as error:
            # An unexpected row or error must not end the loop. It is logged once, and tried again.
            self._count_error(error)
            if self._logged.is_new(repr(error)):
                log.exception("a dispatch cycle failed, trying again")
            failing = f"{type(error).__name__}: {error}"
        if self._backoff.current:  # a renewal may go through all the same, and the next one publishes this
            self.engine_state.failing = failing
        self._drop_connection()
        self._needs_scan = True  # the failed cycle's work is still to be done
        self._last_cycle_at = self.engine_state.monotonic()  # whatever it waited for, it goes on
        self._stop.wait(self._backoff.next())
        return 0.0

    def _meets_unknown_schema(self) -> bool:
        """Whether the tables are not as expected since the schema is another one by now."""
        try:
            return self.registration.heed_schema(self.database.schema())
        except StoreUnavailableError:
            return False

    def _count_error(self, error: Exception) -> None:
        if self.metrics is not None:
            self.metrics.count_error(error)

    def _end_for_good(self, error: StoreReplacedError) -> None:
        """End without another write: the database is not the one that this engine serves."""
        log.critical("%s", error)
        self.replaced = error
        self._stop.set()
        for attempt in list(self.engine_state.held.values()):
            self.engine_state.mark_lost(attempt)
        self.engine_state.reject_requests()
        self.engine_state.closed = True
        self.guard.stop()

    def _log_outage(self, error: StoreUnavailableError) -> None:
        """Log the outage, once for each reason."""
        if not self._logged.is_new(_brief(error)):
            return
        holder = None
        if isinstance(error, StoreError) and error.locked:
            with suppress(TimeoutError, StoreUnavailableError, RuntimeError):
                holder = in_time(self.database.locked_by, FIND_HOLDER_S)
        self.outage = f"{error}" if holder is None else f"{error}; {holder}"
        log.error("the database is away, trying again: %s", self.outage)

    def step(self) -> float:
        """Do upkeep that is due and one cycle. Returns seconds to sleep. Raises StoreUnavailableError."""
        self.periodic.idled += self.engine_state.monotonic() - self._step_ended_at
        try:
            return self._step(self._conn())
        finally:
            self._step_ended_at = self.engine_state.monotonic()

    def _step(self, connection: sa.Connection) -> float:
        if not self.worker:
            self.registration.join(connection)
        elif self.registration.begin_anew_if_changed(connection):
            self._needs_scan = True
        woken = self.engine_state.was_woken()
        timers = self.periodic.timers
        if self.lease.detect_clock_jump():
            timers.bring_forward("renew")
        # Not under a lease that may have run out, nor before due policies have cancelled tasks.
        on_time = not timers.either_due("renew", "looks")
        if woken and self.claims and on_time and self.dispatch.claim_eagerly(connection):
            self._yield_to_slots()
        fired = self._upkeep(connection)
        self.registration.commands_may_wait |= woken  # looked at after the cycle
        for slots in self.slots.values():
            if waiting_since(slots) < self.engine_state.monotonic() - WAKE_MORE_AFTER_S:
                slots.nudge()
        if woken and self.claims and len(self.engine_state.outcomes) > URGENT_MIN_OUTCOMES:
            self.dispatch.run(connection, claiming=True, urgent=True)
        if self._wants_cycle(woken):
            self._run_cycle(connection, woken)
        if woken:
            self._after_wakeup(connection, fired)
        return self._pause()

    def _run_cycle(self, connection: sa.Connection, woken: bool) -> None:
        if not (woken or self._needs_scan or self._has_more or self.inline):
            self.dispatch.wait_for_short_tasks()
        fresh = woken or self._needs_scan or self.engine_state.now() >= self._next_due or self._poll_is_due()
        result = self.dispatch.run(connection, claiming=self.claims, fresh=fresh)
        if self.dispatch.in_vain:  # mostly others were faster; or this worker may claim no more
            self.registration.commands_may_wait = True
        self.cycles += 1
        self.periodic.timers.set("poll", LOCKED_RETRY_S if self.dispatch.completer.deferred else self._poll_every())
        self._next_due = result.next_due
        self._needs_scan, self._has_more = False, result.busy
        if not self.claims:
            self.dispatch.return_waiting()
        if result.schedule_ended:
            self.periodic.schedules.check_again()
        # Where it takes a transaction, only if another worker may listen. One that has joined since polls until
        # the next look, which follows its notification.
        if (result.ready or result.capacity_freed) and not (self.notifier.expensive and self.lease.is_only_worker()):
            self.notifier.notify()
        if result.schedule_ended or result.may_have_more or (result.ready and not self.dispatch.lanes.whole):
            self._needs_scan = True
        if waits.OVERLOOKED in connection.info:
            self._needs_scan = True  # so that the next step comes at once and looks for them
        if result.claimed and not (result.finished or self._has_more or self.dispatch.has_work()):
            self._yield_to_slots()

    def _yield_to_slots(self) -> None:
        """Let slots begin what they were just given: they wait for the interpreter, which this thread has."""
        if not self.inline:
            time.sleep(YIELD_S)

    def _wants_cycle(self, woken: bool) -> bool:
        if (
            woken
            or self._needs_scan
            or self._has_more
            or self.dispatch.has_work()
            or self.engine_state.now() >= self._next_due
        ):
            return True
        if self._poll_is_due():
            return True
        horizon = self.engine_state.monotonic() - self.options.give_back
        return self.dispatch.unmarked() or any(waiting_since(s) < horizon for s in self.slots.values())

    def _poll_is_due(self) -> bool:
        return self.periodic.timers.remaining("poll") <= EARLY_FRACTION * self._poll_every()

    def _pause(self) -> float:
        if self._needs_scan or self._has_more or self.dispatch.has_work() or self.periodic.has_backlog:
            return 0.0
        left = self.periodic.timers.remaining
        wait = min(self._poll_every(), left("poll"))
        if self._next_due < FOREVER:
            wait = min(wait, (self._next_due - self.engine_state.now()) / SECOND)
        wait = min(wait, left("renew"), left("reap"), self.periodic.until_sweep())
        if self.claims:
            wait = min(wait, self.periodic.schedules.seconds_until_due())
        if self.registration.commands_may_wait:
            wait = min(wait, left("commands"))
        if not self.engine_state.held:
            pass  # an idle engine asks no slot
        elif any(s.waiting for s in self.slots.values()):
            wait = min(wait, WAKE_MORE_AFTER_S)
        else:
            # An attempt that has just begun is to be marked running soon.
            unmarked = any(
                a.started_at is not None and not (a.marked or a.lost) for a in list(self.engine_state.held.values())
            )
            wait = min(wait, CANCEL_EVERY / 5 if unmarked else CANCEL_EVERY)
        return max(0.0, wait)

    def _poll_every(self) -> float:
        return self.options.poll if self.notifier.works else 0.1

    def _upkeep(self, connection: sa.Connection) -> bool:
        """Do the upkeep that is due. Returns whether schedules were fired."""
        periodic, timers = self.periodic, self.periodic.timers
        # An engine renews before it reaps.
        if timers.due("renew", self._renew_every):
            self.registration.renew(connection, claims=not self.drained)
            if self.dispatch.completer.completion_thread is not None:
                self.dispatch.completer.completion_thread.forget_plans()
            periodic.learn_limits(connection)
            periodic.write_rollups(connection)
        periodic.publish_worker(connection)
        if timers.due("look", self._renew_every):
            self.registration.commands_may_wait = True
        self._needs_scan |= self.registration.apply_commands(connection)
        polls = self._poll_is_due()
        reclaimed = periodic.reap(connection, self.notifier, polls=polls)
        periodic.purge(connection)
        if not periodic.poll(connection, polls=polls and self.dispatch.at_rest()):
            timers.set("poll", self._poll_every())
        fired = periodic.fire_schedules(connection, woken=False, claims=self.claims)
        woken = periodic.wake_missed(connection)
        freed = periodic.apply_policies(connection)
        freed |= periodic.watch_attempts(connection, self._reported, woken=False)
        if freed:
            self.notifier.notify()
        self._needs_scan |= reclaimed or fired or woken or freed or self.dispatch.pauses_changed
        self.dispatch.pauses_changed = False
        return fired

    def _after_wakeup(self, connection: sa.Connection, fired: bool) -> None:
        """Check what else a notification may mean, after the cycle: mostly it means ready work."""
        self._needs_scan |= self.registration.apply_commands(connection)
        made = not fired and self.periodic.fire_schedules(connection, woken=True, claims=self.claims)
        freed = self.periodic.watch_attempts(connection, self._reported, woken=True)
        if freed:
            self.notifier.notify()
        self._needs_scan |= made or freed

    def _report_start(self) -> None:
        try:
            with self.database.read() as tx:
                by_state, more = counts.about(tx, MAX_COUNTED)  # a million took the loop a second, and 70 MB
        except StoreUnavailableError:
            return
        fields: dict[str, Any] = {"worker": self.worker, "incarnation": self.registration.incarnation, **by_state}
        fields["version"] = self.registration.version
        log.info("ready", extra=fields | {"counted_up_to": MAX_COUNTED} if more else fields)

    # stopping

    def drain(self) -> None:
        """Claim nothing more, and release what no slot has started."""
        self.draining = True
        self.periodic.timers.bring_forward("renew")
        self.dispatch.return_waiting()
        self.engine_state.wake()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until nothing is held any more. False if the time was not enough."""
        deadline = self.engine_state.monotonic() + timeout
        idle = threading.Event()
        # A cycle that began before the drain may still be claiming: wait for its end first.
        settled = self.engine_state.monotonic() + JOIN_TIMEOUT_S
        while not self._drained.is_set() and self.is_running() and self.engine_state.monotonic() < settled:
            self._drained.wait(0.01)
        state = self.engine_state
        while (state.reserved or state.held) and self.is_running():
            left = deadline - self.engine_state.monotonic()
            if left <= 0:
                return False
            idle.wait(min(0.01, left))
        return not state.held

    def running_ids(self) -> list[int]:
        """Ids of the held tasks, in order, without those whose outcome is about to be recorded."""
        done = self._reported()
        return sorted({key[0] for key in list(self.engine_state.held) if key not in done})

    def running(self) -> list[tuple[int, str]]:
        """(id, kind) of the tasks whose handlers run, in order."""
        done = self._reported()
        held = [(key, attempt) for key, attempt in list(self.engine_state.held.items()) if key not in done]
        return sorted((key[0], attempt.claimed.kind) for key, attempt in held if attempt.started_at is not None)

    def _reported(self) -> set[tuple[int, int]]:
        """Claims whose outcome is known and about to be recorded."""
        return {(o.task_id, o.claim) for _, o in [*self.engine_state.outcomes, *self.dispatch.completer.deferred]}

    def idle_for(self) -> float | None:
        """Seconds without a task, up to the database's last answer; None while it holds some, or before it is ready."""
        if self.engine_state.held or not self._ready.is_set():
            return None
        return max(self._answered_at, self.database.answered_at) - self.engine_state.busy_at

    def end_within(self, seconds: float) -> None:
        """Tell the handlers how long they have until they are handed back: ``ctx.time_left()``."""
        for attempt in list(self.engine_state.held.values()):
            attempt.ends_at = self.engine_state.monotonic() + seconds

    def stop(self, *, hand_back_running: bool) -> StoreUnavailableError | None:
        """End the loop. ``hand_back_running``: the last write gives running tasks back, due in 2 s, without using an
        attempt (for a process that is about to end); ``handed_back`` has their ids then. Otherwise nothing may be held.

        Returns what kept that last write from being made; then the lease runs out by itself, and others take over.
        """
        with self._stopping:
            if self._closed:
                return None
            self._closed = True
            return self._stop_once(hand_back_running)

    def _stop_once(self, hand_back_running: bool) -> StoreUnavailableError | None:
        trouble: StoreUnavailableError | None = None
        self._stop.set()
        self.engine_state.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=JOIN_TIMEOUT_S)
        until = self.engine_state.monotonic() + HAND_OVER_S
        while self.engine_state.reserved and self.engine_state.monotonic() < until:
            time.sleep(YIELD_S)
        if hand_back_running:
            for slots in self.slots.values():
                slots.abandon()
        try:
            if self._thread is not None and self._thread.is_alive() and not self._ended.is_set():
                raise StoreUnavailableError("the last cycle is still under way")  # it uses the connection
            if self.replaced is not None:
                raise self.replaced
            self._last_write(hand_back_running)
        except StoreReplacedError as error:  # logged when it was noticed
            trouble = error
        except StoreUnavailableError as error:
            log.error("could not record that this worker has stopped: %s; the lease runs out by itself", error)
            trouble = error
        except Exception as error:
            log.exception("could not record that this worker has stopped; the lease runs out by itself")
            trouble = StoreUnavailableError(f"the last write failed: {error}")
        self.guard.stop()
        self.engine_state.closed = True
        self.engine_state.abort_requests()
        self.engine_state.note_begins(None)
        for slots in self.slots.values():
            slots.close()
        self.engine_state.dead_letter_hook.close()
        self.notifier.close()
        if self.dispatch.completer.completion_thread is not None:
            self.dispatch.completer.completion_thread.close()
        self.capture.detach()
        self._drop_connection()
        return trouble

    def _last_write(self, hand_back_running: bool) -> None:
        if not self.worker:
            return
        connection = self._conn()
        extra: list[tuple[Attempt, Outcome]] = []
        if hand_back_running:
            done = self._reported()
            held = [a for key, a in list(self.engine_state.held.items()) if key not in done]
            extra = [(a, outcome_at_stop(a, self.engine_state, RELEASE_DELAY_US)) for a in held]
        self.handed_back = sorted(self.dispatch.run(connection, claiming=False, extra=extra).given_back)
        self.periodic.write_rollups(connection)
        with self.database.write(connection) as tx:
            workers.stop(tx, self.worker)
        self.notifier.notify()

    # inline (tests)

    def write_rollups(self) -> None:
        """Write the numbers of what has ended so far."""
        self.periodic.write_rollups(self._conn())

    def step_without_claims(self) -> None:
        """Record what has ended, and answer requests."""
        self.dispatch.run(self._conn(), claiming=False)

    def claim_task(self, task_id: int) -> bool:
        """Claim this one task if it is due and this engine serves it; returns whether it was claimed."""
        return self.dispatch.claim_task(self._conn(), task_id)

    def inline_slots(self) -> Iterable[InlineSlots]:
        for slots in self.slots.values():
            if isinstance(slots, InlineSlots):
                yield slots


def _brief(error: StoreUnavailableError) -> str:
    """It without the driver's text, which differs from statement to statement."""
    return error.brief if isinstance(error, StoreError) else str(error)
