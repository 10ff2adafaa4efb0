"""The daemon's main thread: waits for signals, notifies systemd, reloads and stops."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from scheduler import interpreter
from scheduler.backoff import Backoff, LogOnce
from scheduler.config.load import changed, load
from scheduler.config.model import Config
from scheduler.config.paths import settled
from scheduler.config.scheduler_options import scheduler_options
from scheduler.config.task_modules import TaskModules
from scheduler.daemon import log
from scheduler.daemon.bounded_run import BoundedRun
from scheduler.daemon.companions import AlertCompanion, Companion, Reloads, stop_all
from scheduler.daemon.log_guard import GUARD
from scheduler.daemon.sd_notify import SystemdNotifier
from scheduler.daemon.signals import BackgroundCall, Signals
from scheduler.errors import ConfigError, SchedulerError, StoreReplacedError, StoreUnavailableError
from scheduler.interrupts import StopSignals
from scheduler.system.signals import HUP

if TYPE_CHECKING:
    from scheduler.model.registry import Registry
    from scheduler.store.db.database import Database
    from scheduler.telemetry.health import Vitals
    from scheduler.telemetry.registry import MetricsRegistry

NOTHING_NEW = "reloaded: nothing has changed in the configuration; new code of task modules needs a restart"
NOTHING_NOW = "reloaded: nothing of what has changed takes effect before a restart"
OK, FAILED, UNREACHABLE, RESTART = 0, 1, 5, 75  # 75: systemd starts the daemon again
STATUS_EVERY = 10.0
LAST_WRITE_TIMEOUT = 10.0  # seconds that the last write may take, after the drain time or a second signal
COMPANIONS_TIMEOUT = 3.5  # seconds that what runs beside the Scheduler may take to stop
DRAIN_POLL_EVERY = 0.1  # seconds between checks of the deadline while draining
FIRST_PAUSE, MAX_PAUSE = 0.25, 15.0  # seconds between tries to reach a store that is away at start

logger = logging.getLogger("scheduler.daemon")


class Loop(Protocol):
    """What the daemon needs of an engine."""

    replaced: StoreReplacedError | None
    """The reason why the engine stopped by itself: its database file was replaced."""

    database: Database
    """The store of its tasks."""

    outage: str | None
    """Why the database cannot be used at present; None: it can."""

    def loop_age(self) -> float:
        """Seconds since the last dispatch cycle."""
        ...

    def wait_ended(self) -> object:
        """Wait until the loop has ended."""
        ...

    def wait_ready(self) -> object:
        """Wait until the first dispatch cycle is over."""
        ...

    def running_ids(self) -> list[int]:
        """The tasks held, without asking the database."""
        ...

    def drain(self) -> object:
        """Claim nothing more."""
        ...

    def wait_idle(self, timeout: float) -> bool:
        """Wait until nothing is held; False if the time was not enough."""
        ...

    def idle_for(self) -> float | None:
        """Seconds without a task; None while it holds some, or before it is ready."""
        ...

    def end_within(self, seconds: float) -> object:
        """Tell the handlers how long they have."""
        ...

    def on_restart(self, callback: Callable[[], None], /) -> object:
        """Call ``callback`` when an operator asks for a restart of the daemon."""
        ...

    @property
    def metrics(self) -> MetricsRegistry | None:
        """Its metrics; None if they are off."""
        ...

    def health(self) -> Vitals:
        """What health checks look at, without asking the database."""
        ...

    def hung_pool(self) -> str | None:
        """The pool all of whose slots of one type are taken by handlers that hang."""
        ...

    def only_hung(self) -> bool:
        """Whether all held attempts hang."""
        ...


class Service(Protocol):
    """What the daemon needs of a Scheduler."""

    @property
    def engine(self) -> Loop: ...

    registry: Registry

    def register(self, task_type: Any, /) -> Any: ...
    def starting(self) -> AbstractContextManager[None]: ...
    def start(self) -> object: ...
    def reconfigure(self, *, pools: Mapping[str, tuple[int, int]], max_concurrent_tasks: int = 0) -> object: ...
    def stop_now(self) -> list[int]: ...
    def is_running(self) -> bool: ...


class DaemonExit(NamedTuple):
    """How the daemon ended. ``hard``: the process must not wait for threads that still run handlers."""

    status: int
    hard: bool = False


class Supervisor:
    """Supervises one running Scheduler. Everything here happens in the main thread."""

    def __init__(
        self,
        config: Config,
        service: Service,
        loader: TaskModules,
        notifier: SystemdNotifier,
        signals: Signals,
        companions: Sequence[Companion] = (),
        bounds: BoundedRun | None = None,
    ) -> None:
        self.config = config
        self._bounds = BoundedRun() if bounds is None else bounds
        self._companions = companions
        self._service = service
        self._loader = loader
        self._notifier = notifier
        self._signals = signals
        self._stops = 0  # signals to stop that count
        self._stop_signals = StopSignals()
        self._reload_wanted = False
        self._restart_wanted = False
        self._engine: Loop | None = None  # kept here, since the service has no engine while it stops
        self._stuck = False
        self._next_ping = self._next_status = 0.0
        self._status = ""
        self._deadline = 0.0  # until when running tasks may finish, once stopping

    @property
    def engine(self) -> Loop | None:
        """The engine; None while there is none yet. From any thread."""
        if self._engine is None:
            with suppress(ConfigError):
                return self._service.engine
        return self._engine

    def run(self) -> DaemonExit:
        """Start, serve until a signal to stop, stop.

        Raises ConfigError or StoreUnavailableError when it cannot start and waiting would not help.
        """
        watches = [one for one in self._companions if isinstance(one, AlertCompanion)]
        for watch in watches:
            watch.watch()
        if not self._start():
            return self._stop() if self._service.is_running() else DaemonExit(OK, hard=True)
        self._engine = engine = self._service.engine
        for watch in watches:
            watch.outage = lambda: engine.outage
            watch.keep_to(engine.database)
        self._engine.on_restart(self._want_restart)
        BackgroundCall(
            self._signals, self._engine.wait_ended, "schedd-watch"
        )  # wakes this thread if the engine ends by itself
        try:
            for companion in self._companions:
                companion.start()
        except SchedulerError:  # such as an address that is taken: what runs by now comes to its end
            self._stop()
            raise
        self._notifier.ready("ready")
        while not (self._stops or self._wants_restart() or self._is_over(self._engine)):
            if self._reload_wanted:
                self._reload_wanted = False
                self._reload()
            if not self._service.is_running():
                if self._engine.replaced is not None:  # the engine has logged it
                    return DaemonExit(UNREACHABLE, hard=True)
                logger.critical("the engine has stopped by itself")
                return DaemonExit(FAILED, hard=True)
            self._wait(self._bounds.poll(STATUS_EVERY, self.config.worker.drain))
        return self._stop()

    def _is_over(self, engine: Loop) -> bool:
        """Whether the command line lets it end now."""
        why = self._bounds.over(engine.idle_for(), self.config.worker.drain)
        if why is not None:
            logger.info("ending: %s", why)
        return why is not None

    def _want_restart(self) -> None:
        """Request a restart, from any thread."""
        self._restart_wanted = True
        self._signals.wake()

    def _wants_restart(self) -> bool:
        if self.config.worker.restart_when_hung and not self._restart_wanted and self._engine is not None:
            pool = self._engine.hung_pool()
            if pool is not None:
                logger.error("each slot of the %s pool is taken by a handler that hangs: restarting", pool)
                self._restart_wanted = True
        return self._restart_wanted

    # Waiting

    def _wait(self, longest: float) -> None:
        """Wait for signals and record them; keeps systemd informed. Returns early when woken."""
        now = time.monotonic()
        if self._notifier.watchdog is not None:
            if now >= self._next_ping:
                self._next_ping = now + self._notifier.watchdog / 2
                self._ping(self._notifier.watchdog)
            longest = min(longest, self._next_ping - now)
        if self._engine is not None and now >= self._next_status:
            self._next_status = now + STATUS_EVERY
            GUARD.put_back()
            self._tell_status(self._engine)
        for number in self._signals.wait(max(0.0, longest)):
            if number == HUP:
                self._reload_wanted = True
            elif self._stop_signals.counts():
                self._stops += 1
                logger.info("%s received", signal.Signals(number).name)

    def _wait_until(self, over: Callable[[], bool], longest: float) -> bool:
        """Wait until ``over()``, at most ``longest`` seconds; returns whether it is over."""
        deadline = time.monotonic() + longest
        while not over():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait(min(left, STATUS_EVERY))
        return True

    def _ping(self, interval: float) -> None:
        """Ping systemd's watchdog as long as dispatch cycles go on."""
        age = self._engine.loop_age() if self._engine is not None else 0.0
        if age < interval:
            self._notifier.send("WATCHDOG=1")
        elif not self._stuck:
            logger.error("the engine's loop has not run for %.1f s: no more pings to the watchdog", age)
        self._stuck = age >= interval

    def _tell_status(self, engine: Loop) -> None:
        count = len(engine.running_ids())
        status = f"{count} {'task' if count == 1 else 'tasks'} under way"
        if status != self._status:
            self._status = status
            self._notifier.send(f"STATUS={status}")

    # Starting

    def _start(self) -> bool:
        """Start the Scheduler, and wait for a store that is away; False if a signal to stop came first."""
        logged, backoff = LogOnce(), Backoff(FIRST_PAUSE, MAX_PAUSE)
        while True:
            work = BackgroundCall(self._signals, self._bring_up, "schedd-start")
            while not self._wait_until(lambda: work.done or self._stops > 0, STATUS_EVERY):  # noqa: B023
                self._notifier.extend(6 * STATUS_EVERY)
            if self._stops:
                return False
            try:
                work.result()
            except StoreUnavailableError as error:
                if not error.heals:
                    raise
                if logged.is_new(str(error)):
                    logger.warning("%s; trying again until it is there", error)
                    self._notifier.send(f"STATUS=waiting for the store: {error}")
            else:
                if backoff.current:
                    logger.info("the store is there now")
                return True
            self._notifier.extend(6 * STATUS_EVERY)
            if self._wait_until(lambda: self._stops > 0, backoff.next()):
                return False

    def _bring_up(self) -> None:
        self._loader.set_up()
        interpreter.freeze()
        self._service.start()
        self._service.engine.wait_ready()

    # Reloading

    def _reload(self) -> None:
        """Read the configuration again; a mistake in it leaves everything as it is."""
        self._notifier.reloading()
        try:
            self._adopt(self._bounds.applied(settled(load(self.config.file, directory=self.config.directory))))
        except SchedulerError as error:
            logger.error("not reloaded: %s", error)
        except Exception:  # users' modules may raise anything; running tasks go on
            logger.exception("not reloaded")
        self._notifier.ready()

    def _adopt(self, wanted: Config) -> None:
        """Apply the settings that can change while running, and log those that cannot."""
        old, replace = self.config, msgspec.structs.replace
        wanted = replace(wanted, log=log.settled(wanted.log))
        kept = replace(
            old,
            tasks=replace(wanted.tasks, state=old.tasks.state),
            pools=wanted.pools,
            worker=replace(
                old.worker, drain=wanted.worker.drain, max_concurrent_tasks=wanted.worker.max_concurrent_tasks
            ),
            log=replace(wanted.log, attempts=old.log.attempts),
        )
        reloads = [one for one in self._companions if isinstance(one, Reloads)]
        for one in reloads:
            kept = one.adopt(kept, wanted)
        changes = [change for one in reloads if (change := one.prepare(kept)) is not None]
        kinds = self._loader.register(kept)
        if not self._done_meanwhile(self._loader.set_up, "setup()"):
            return
        for change in changes:
            if not self._done_meanwhile(change, "a change"):
                return
        if kept.log != old.log:
            log.configure(kept.log)
        if (kept.pools, kept.worker.max_concurrent_tasks) != (old.pools, old.worker.max_concurrent_tasks):
            options = scheduler_options(kept)
            self._service.reconfigure(pools=options["pools"], max_concurrent_tasks=options["max_concurrent_tasks"])
        self.config = kept
        later = changed(kept, wanted)
        if set(old.tasks.modules) - set(kept.tasks.modules):
            later.append("tasks.modules")  # imported modules stay imported
        if set(old.tasks.builtin) - set(kept.tasks.builtin):
            later.append("tasks.builtin")
        now = changed(old, kept)
        if now or kinds:
            logger.info("reloaded", extra={"changed": now, "kinds_registered": kinds})
        else:
            logger.info("%s", NOTHING_NOW if later else NOTHING_NEW, extra={"file": kept.file})
        if later:
            logger.warning("only a restart puts these into effect: %s", ", ".join(later))

    def _done_meanwhile(self, work: Callable[[], object], what: str) -> bool:
        """Do work in another thread, and keep systemd informed; False if a signal to stop came first."""
        call = BackgroundCall(self._signals, work, "schedd-setup")
        while not self._wait_until(lambda: call.done or self._stops > 0, STATUS_EVERY):
            self._notifier.extend(6 * STATUS_EVERY)
        if not call.done:
            logger.warning("not reloaded: stopped while %s was under way", what)
            return False
        call.result()
        return True

    # Stopping

    def _stop(self) -> DaemonExit:
        """Drain; a second signal, or the end of the drain time, releases the tasks that still run."""
        drain, stops_before = self._bounds.drain(self.config.worker.drain), self._stops
        self._notifier.stopping("running tasks finish")
        self._notifier.extend(drain + 2 * LAST_WRITE_TIMEOUT)
        self._deadline = time.monotonic() + drain
        work = BackgroundCall(self._signals, self._end, "schedd-stop")
        over = self._wait_until(lambda: work.done or self._stops > stops_before, drain + LAST_WRITE_TIMEOUT)
        if over and not work.done:
            logger.warning("stopping at once")
            stops_before, self._deadline = self._stops, 0.0
            self._wait_until(lambda: work.done or self._stops > stops_before, LAST_WRITE_TIMEOUT)
        if not work.done:
            logger.error("could not release what still runs: it starts again when this worker's lease ends")
            return DaemonExit(UNREACHABLE, hard=True)
        try:
            left, busy = work.result()
        except StoreUnavailableError:  # the engine has logged it; running tasks start again when the lease ends
            return DaemonExit(UNREACHABLE, hard=True)
        if left:
            logger.warning("%d tasks were still running; they start again", len(left), extra={"tasks": left[:100]})
        if self._restart_wanted and not self._stops:
            logger.info("stopped, to be started again")
            return DaemonExit(RESTART, hard=busy)
        logger.info("stopped")
        return DaemonExit(OK, hard=busy)

    def _end(self) -> tuple[list[int], bool]:
        """Drain until the deadline, which may move forward; returns released ids, and whether handlers still ran."""
        engine = self._service.engine
        engine.drain()
        left = max(0.0, self._deadline - time.monotonic())
        engine.end_within(left)
        # After the engine has stopped claiming.
        logger.info("stopping: no new tasks, running ones have %g s", round(left, 1))
        while (left := self._deadline - time.monotonic()) > 0 and self._service.is_running():
            if engine.wait_idle(min(left, DRAIN_POLL_EVERY)) or engine.only_hung():
                break
        busy = bool(engine.running_ids())
        stop_all(self._companions, COMPANIONS_TIMEOUT)  # first: the last to close a SQLite database leaves one file
        return self._service.stop_now(), busy
