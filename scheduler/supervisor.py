"""The daemon's main thread: waits for signals, tells systemd how things are, reloads, ends in good order."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from scheduler import config as configuration
from scheduler import interpreter, log
from scheduler.config import Config
from scheduler.errors import SchedulerError, StoreUnavailableError
from scheduler.modules import Loader
from scheduler.notify import Notifier
from scheduler.signals import Background, Signals

if TYPE_CHECKING:
    from scheduler.model.registry import Registry

OK, FAILED, UNREACHABLE = 0, 1, 5
STATUS_EVERY = 10.0
LAST_WRITE = 10.0  # seconds that the last write may take, after the drain time or a second signal
LOOK_EVERY = 0.1  # seconds between looks, while draining, whether to hurry
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0  # between tries to reach a store that is away at start

logger = logging.getLogger("scheduler.daemon")


class Loop(Protocol):
    """What the daemon needs of an engine."""

    def loop_age(self) -> float:
        """Seconds since the loop last went round."""
        ...

    def wait_ready(self) -> object:
        """Wait until the first turn is over."""
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


class Service(Protocol):
    """What the daemon needs of a Scheduler."""

    @property
    def engine(self) -> Loop: ...

    registry: Registry

    def register(self, task_type: Any, /) -> Any: ...
    def start(self) -> object: ...
    def stop_now(self) -> list[int]: ...
    def is_running(self) -> bool: ...


class Ended(NamedTuple):
    """``hard``: threads still run what is not theirs any more, so the process must not wait for them."""

    status: int
    hard: bool = False


class Supervisor:
    """Supervises one running Scheduler. Everything here happens in the main thread."""

    def __init__(self, config: Config, service: Service, loader: Loader, notifier: Notifier, signals: Signals) -> None:
        self.config = config
        self._service = service
        self._loader = loader
        self._notifier = notifier
        self._signals = signals
        self._stops = 0  # how often it was told to stop
        self._reload_wanted = False
        self._engine: Loop | None = None  # once it is ready; the service has none any more while it stops
        self._stuck = False
        self._next_ping = self._next_status = 0.0
        self._status = ""
        self._deadline = 0.0  # until when running tasks may finish, once stopping

    def run(self) -> Ended:
        """Start, serve until told to stop, stop.

        Raises ConfigError or StoreUnavailableError when it cannot start and waiting would not help.
        """
        if not self._start():
            return self._stop() if self._service.is_running() else Ended(OK, hard=True)
        self._engine = self._service.engine
        self._notifier.ready("ready")
        while not self._stops:
            if self._reload_wanted:
                self._reload_wanted = False
                self._reload()
            if not self._service.is_running():
                logger.critical("the engine has stopped by itself")
                return Ended(FAILED, hard=True)
            self._wait(STATUS_EVERY)
        return self._stop()

    # Waiting

    def _wait(self, longest: float) -> None:
        """Wait for signals and take note of them; keeps systemd informed. Returns early when woken."""
        now = time.monotonic()
        if self._notifier.watchdog is not None:
            if now >= self._next_ping:
                self._next_ping = now + self._notifier.watchdog / 2
                self._ping(self._notifier.watchdog)
            longest = min(longest, self._next_ping - now)
        if self._engine is not None and now >= self._next_status:
            self._next_status = now + STATUS_EVERY
            self._tell_status(self._engine)
        for number in self._signals.wait(max(0.0, longest)):
            if number == signal.SIGHUP:
                self._reload_wanted = True
            else:
                self._stops += 1
                logger.info("%s received", signal.Signals(number).name)

    def _wait_until(self, over: Callable[[], bool], longest: float) -> bool:
        """Wait until ``over()``, at most ``longest`` seconds; whether it is over."""
        deadline = time.monotonic() + longest
        while not over():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait(min(left, STATUS_EVERY))
        return True

    def _ping(self, interval: float) -> None:
        """Tell systemd that the daemon is alive, which it is while its loop goes round."""
        age = self._engine.loop_age() if self._engine is not None else 0.0
        if age < interval:
            self._notifier.send("WATCHDOG=1")
        elif not self._stuck:
            logger.error("the loop has not gone round for %.1f s: no more pings to the watchdog", age)
        self._stuck = age >= interval

    def _tell_status(self, engine: Loop) -> None:
        count = len(engine.running_ids())
        status = f"{count} {'task' if count == 1 else 'tasks'} under way"
        if status != self._status:
            self._status = status
            self._notifier.send(f"STATUS={status}")

    # Starting

    def _start(self) -> bool:
        """Bring the Scheduler up; False if told to stop before it was. A store that is away is waited for."""
        told, pause = "", FIRST_PAUSE
        while True:
            work = Background(self._signals, self._bring_up, "schedd-start")
            while not self._wait_until(lambda: work.done or self._stops > 0, STATUS_EVERY):  # noqa: B023
                self._notifier.extend(6 * STATUS_EVERY)
            if self._stops:
                return False
            try:
                work.result()
            except StoreUnavailableError as error:
                if not error.heals:
                    raise
                if str(error) != told:
                    told = str(error)
                    logger.warning("%s; trying again until it is there", told)
                    self._notifier.send(f"STATUS=waiting for the store: {told}")
            else:
                if told:
                    logger.info("the store is there now")
                return True
            self._notifier.extend(6 * STATUS_EVERY)
            if self._wait_until(lambda: self._stops > 0, pause):
                return False
            pause = min(2 * pause, LONGEST_PAUSE)

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
            self._adopt(configuration.load(self.config.file))
        except SchedulerError as error:
            logger.error("not reloaded: %s", error)
        except Exception:  # whatever users' modules raise: what runs goes on
            logger.exception("not reloaded")
        self._notifier.ready()

    def _adopt(self, wanted: Config) -> None:
        """Take over what can be changed while running, and name what cannot."""
        old, replace = self.config, msgspec.structs.replace
        kept = replace(
            old,
            tasks=replace(wanted.tasks, state=old.tasks.state),
            worker=replace(old.worker, drain=wanted.worker.drain),
            log=replace(wanted.log, attempts=old.log.attempts),
        )
        kinds = self._loader.register(kept)
        work = Background(self._signals, self._loader.set_up, "schedd-setup")
        while not self._wait_until(lambda: work.done or self._stops > 0, STATUS_EVERY):
            self._notifier.extend(6 * STATUS_EVERY)
        if not work.done:
            logger.warning("not reloaded: told to stop while setup() was under way")
            return
        work.result()
        if kept.log != old.log:
            log.configure(kept.log)
        self.config = kept
        later = configuration.changed(kept, wanted)
        if set(old.tasks.modules) - set(kept.tasks.modules):
            later.append("tasks.modules")  # what is imported stays imported
        if set(old.tasks.builtin) - set(kept.tasks.builtin):
            later.append("tasks.builtin")
        logger.info("reloaded", extra={"changed": configuration.changed(old, kept), "kinds_registered": kinds})
        if later:
            logger.warning("only a restart puts these into effect: %s", ", ".join(later))

    # Stopping

    def _stop(self) -> Ended:
        """Drain; a second signal, or the end of the drain time, hands back what still runs."""
        drain, told = self.config.worker.drain, self._stops
        self._notifier.stopping("running tasks finish")
        self._notifier.extend(drain + 2 * LAST_WRITE)
        self._deadline = time.monotonic() + drain
        work = Background(self._signals, self._end, "schedd-stop")
        over = self._wait_until(lambda: work.done or self._stops > told, drain + LAST_WRITE)
        if over and not work.done:
            logger.warning("stopping at once")
            told, self._deadline = self._stops, 0.0
            self._wait_until(lambda: work.done or self._stops > told, LAST_WRITE)
        if not work.done:
            logger.error("could not hand back what still runs: it starts again when this worker's lease ends")
            return Ended(UNREACHABLE, hard=True)
        try:
            left, busy = work.result()
        except StoreUnavailableError:  # told by the engine; what still runs starts again when the lease ends
            return Ended(UNREACHABLE, hard=True)
        if left:
            logger.warning("%d tasks were still running; they start again", len(left), extra={"tasks": left[:100]})
        logger.info("stopped")
        return Ended(OK, hard=busy)

    def _end(self) -> tuple[list[int], bool]:
        """Drain until the deadline, which may be brought forward; returns what was handed back then, and whether
        anything still ran."""
        engine = self._service.engine
        engine.drain()
        logger.info("stopping: no new tasks, running ones have %g s", self.config.worker.drain)  # and now that is so
        while (left := self._deadline - time.monotonic()) > 0 and self._service.is_running():
            if engine.wait_idle(min(left, LOOK_EVERY)):
                break
        busy = bool(engine.running_ids())
        return self._service.stop_now(), busy
