"""ExecutorService: the threads of a daemon that place tasks, one for each executor of its configuration."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence

from scheduler.app import Scheduler
from scheduler.backoff import LogOnce
from scheduler.config.model import Config
from scheduler.engine.dead_letter_hook import DeadLetterHook
from scheduler.errors import StoreUnavailableError
from scheduler.executors.placer import Placer
from scheduler.executors.ports import Executor, ExecutorError, Finding
from scheduler.executors.types import make_executor
from scheduler.executors.warm import START
from scheduler.model.placement import GRACE_VARIABLE
from scheduler.ports import SECOND, spawn_thread

STEP_TIMEOUT_S = 60.0  # of one look, in the database
GOODBYE_S = 2.0  # for giving the leases up
STOP_WITHIN_S = 5.0  # that a stop waits for all threads
REST_FRACTION = 0.2  # of an interval: so long a placer rests after a look, however often it is woken

log = logging.getLogger("scheduler.executors")


def make_executors(config: Config) -> dict[str, Executor]:
    """The executors of a configuration, by name, checked as far as that needs no engine. Raises ConfigError."""
    return {name: make_executor(config, name) for name in config.executors}


def check_executor(config: Config, name: str) -> list[Finding]:
    """What is found about an executor by asking its engine; a failure is a finding, too. Raises ConfigError."""
    executor = make_executor(config, name)
    try:
        return list(executor.check())
    except ExecutorError as error:
        return [Finding(False, str(error))]
    finally:
        executor.close()


class JobCommands:
    """Jobs start with this program's interpreter, and read its configuration."""

    def __init__(self, config: Config, grace: float) -> None:
        self._env = {GRACE_VARIABLE: f"{grace:g}"}
        if config.file is not None:
            self._env["SCHEDD_CONFIG"] = config.file

    def argv(self, executor: str, task_id: int, claim: int) -> Sequence[str]:
        """See :class:`scheduler.executors.placer.Commands`."""
        return [*START, executor, str(task_id), str(claim)]

    def env(self) -> Mapping[str, str]:
        """See :class:`scheduler.executors.placer.Commands`."""
        return self._env


class ExecutorService:
    """Places tasks between :meth:`start` and :meth:`stop`. Jobs outlive it. Raises ConfigError."""

    def __init__(self, config: Config, jobs: Scheduler) -> None:
        self._jobs = jobs
        self._stopping = threading.Event()
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._placers = {}
        for name, executor in make_executors(config).items():
            section = config.executors[name]
            self._placers[name] = Placer(
                name,
                section,
                executor,
                jobs.database,
                jobs.registry,
                holder,
                JobCommands(config, section.grace),
                ring=self._ring,
                dead_letters=DeadLetterHook(jobs.on_dead_letter, spawn_thread),
                default_timeout=round(config.worker.default_timeout * SECOND),
            )
        self._woken = {name: threading.Event() for name in self._placers}
        self._rest = {name: config.executors[name].interval * REST_FRACTION for name in self._placers}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        self._jobs.engine.engine_state.on_wake += (self.wake,)
        for name, placer in self._placers.items():
            thread = threading.Thread(
                target=self._run, args=(name, placer), name=f"schedd-executor-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def wake(self) -> None:
        """There may be new work. From any thread."""
        for event in self._woken.values():
            event.set()

    def stop(self) -> None:
        """Place nothing more, and leave the leases to other daemons; jobs go on. Returns within ``STOP_WITHIN_S``."""
        deadline = time.monotonic() + STOP_WITHIN_S
        self._stopping.set()
        self.wake()
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("%s hangs: its lease runs out by itself", thread.name)

    def _ring(self) -> None:
        """Tasks may run that could not before."""
        engine = self._jobs.engine
        engine.wake()
        engine.notifier.notify()

    def _run(self, name: str, placer: Placer) -> None:
        logged, woken = LogOnce(), self._woken[name]
        while not self._stopping.is_set():
            woken.clear()
            began, pause = time.monotonic(), 1.0
            try:
                with self._jobs.database.within(STEP_TIMEOUT_S):
                    pause = placer.step()
                logged.clear()
            except StoreUnavailableError as error:
                if logged.is_new(str(error)):
                    log.warning("executor %s cannot place tasks: %s", name, error)
            except Exception as error:
                if logged.is_new(repr(error)):
                    log.exception("executor %s could not place tasks, trying again", name)
            if self._stopping.wait(self._rest[name]):
                break
            woken.wait(max(0.0, pause - (time.monotonic() - began)))
        try:
            with self._jobs.database.within(GOODBYE_S):
                placer.give_up()
        except StoreUnavailableError as error:
            log.info("the lease of executor %s was not given up: %s", name, error)
        placer.close()
