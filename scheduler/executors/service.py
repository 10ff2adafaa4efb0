"""ExecutorService: the threads of a daemon that have jobs started, one for each executor of its configuration."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.app import Scheduler
from scheduler.backoff import LogOnce
from scheduler.config.executors import ExecutorSection, resources_of_worker
from scheduler.config.extensions import ExtensionGroup, find, settings_of
from scheduler.config.model import Config
from scheduler.config.sources import format_duration
from scheduler.engine.dead_letter_hook import DeadLetterHook
from scheduler.errors import StoreUnavailableError
from scheduler.executors import ports
from scheduler.executors.job_fork_server import START
from scheduler.executors.placer import Placer
from scheduler.executors.ports import Executor, ExecutorError, Finding
from scheduler.executors.worker_placer import WorkerPlacer
from scheduler.model.placement import GATEWAY_VARIABLE, GRACE_VARIABLE, TOKEN_VARIABLE, job_token
from scheduler.model.texts import listed
from scheduler.ports import SECOND, spawn_thread

if TYPE_CHECKING:
    from scheduler.executors.gateway import JobGateway

STEP_TIMEOUT_S = 60.0  # of one look, in the database
GOODBYE_S = 2.0  # for giving the leases up
STOP_WITHIN_S = 3.0  # that a stop waits for all threads
REST_FRACTION = 0.2  # of an interval: so long a placer rests after a look, however often it is woken
WORKER_MODULE = "scheduler.daemon.worker_job"
_OF_THE_DAEMON = ("SCHEDD_", "PG", "CREDENTIALS_DIRECTORY")  # beginnings of names
EXECUTORS = ExtensionGroup(
    "schedd.executors",
    "executor",
    "executors",
    {
        "futures": "scheduler.executors.futures:FuturesExecutor",
        "kubernetes": "scheduler.executors.kubernetes:KubernetesExecutor",
        "process": "scheduler.executors.process:ProcessExecutor",
        "ray": "scheduler.executors.ray:RayExecutor",
        "slurm": "scheduler.executors.slurm:SlurmExecutor",
    },
)

log = logging.getLogger("scheduler.executors")


def make_executor(config: Config, name: str) -> ports.Executor:
    """The executor ``[executors.NAME]``. Does no I/O but reading files of secrets. Raises ConfigError."""
    section = config.executors[name]
    factory: ports.ExecutorFactory = find(EXECUTORS, section.type)
    return factory(name, settings_of(factory.Settings, EXECUTORS, name, section, config.origins))


def make_executors(config: Config) -> dict[str, Executor]:
    """The executors of a configuration, by name, checked as far as that needs no engine. Raises ConfigError."""
    return {name: make_executor(config, name) for name in config.executors}


def check_executor(config: Config, name: str) -> list[Finding]:
    """What is found about an executor by asking its backend; a failure is a finding, too. Raises ConfigError."""
    executor, section = make_executor(config, name), config.executors[name]
    try:
        return [*executor.check(), *_finding_of_workers(section)]
    except ExecutorError as error:
        return [Finding(False, str(error))]
    finally:
        executor.close()


def _finding_of_workers(section: ExecutorSection) -> Iterator[Finding]:
    if section.place != "worker":
        return
    lifetime = f", for {format_duration(section.lifetime)} at most" if section.lifetime else ""
    yield Finding(
        True,
        f"{section.min_workers} to {section.max_workers} workers serve queue {listed(list(section.queues))}, each with "
        f"resources {resources_of_worker(section)}{lifetime}; one more once a task has been due for "
        f"{format_duration(section.scale_when_older)}",
    )


class JobCommands:
    """Jobs start with this program's interpreter, and read its configuration."""

    def __init__(self, config: Config, section: ExecutorSection) -> None:
        self._config = config
        self._env = {GRACE_VARIABLE: f"{section.grace:g}"}
        self._secret = config.gateway.secret if section.store == "gateway" else None
        file = config.file if section.job_config is None else section.job_config
        if file is not None:
            self._env["SCHEDD_CONFIG"] = file
        if self._secret is not None:
            self._env[GATEWAY_VARIABLE] = " ".join(config.gateway.urls)

    def argv(self, executor: str, task_id: int, claim: int) -> Sequence[str]:
        """See :class:`scheduler.executors.placer.Commands`."""
        return [*START, executor, str(task_id), str(claim)]

    def worker_argv(self, executor: str, job: str, *, stays: bool) -> Sequence[str]:
        """See :class:`scheduler.executors.worker_placer.WorkerCommands`."""
        section = self._config.executors[executor]
        options = ["--queues", ",".join(section.queues)]
        if not stays:
            options += ["--exit-when-idle", f"{section.idle:g}"]
        if section.lifetime:
            options += ["--lifetime", f"{section.lifetime:g}"]
        return [sys.executable, "-P", "-m", WORKER_MODULE, executor, job, *options]

    def env(self) -> Mapping[str, str]:
        """See :class:`scheduler.executors.placer.Commands`."""
        return self._env

    def own_env(self, store: str, executor: str, task_id: int, claim: int) -> Mapping[str, str]:
        """The token of a job that has no database."""
        if self._secret is None:
            return {}
        return {TOKEN_VARIABLE: job_token(self._secret, store, executor, task_id, claim)}

    def without(self) -> Sequence[str]:
        """A job that has no database gets none of the daemon's settings, for they may hold its password."""
        return () if self._secret is None else [name for name in os.environ if name.startswith(_OF_THE_DAEMON)]


class ExecutorService:
    """Places tasks and starts workers between :meth:`start` and :meth:`stop`. Jobs outlive it. Raises ConfigError."""

    def __init__(self, config: Config, jobs: Scheduler) -> None:
        self._jobs = jobs
        self._stopping = threading.Event()
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._placers = {
            name: self._make_placer(name, config, executor, holder) for name, executor in make_executors(config).items()
        }
        self.gateway = self._make_gateway(config)
        self._woken = {name: threading.Event() for name in self._placers}
        self._rest = {name: config.executors[name].interval * REST_FRACTION for name in self._placers}
        self._threads: list[threading.Thread] = []

    def _make_gateway(self, config: Config) -> JobGateway | None:
        if config.gateway.listen is None:
            return None
        from scheduler.transports.ports import require

        require("uvicorn", "gateway", "[gateway] listen")
        from scheduler.executors.gateway import JobGateway

        return JobGateway(config, self._jobs, self._ring_ends)

    def _make_placer(self, name: str, config: Config, executor: Executor, holder: str) -> Placer | WorkerPlacer:
        jobs, section = self._jobs, config.executors[name]
        commands = JobCommands(config, section)
        if section.place == "worker":
            return WorkerPlacer(
                name, section, executor, jobs.database, jobs.registry, holder, commands, ring=self._ring
            )
        return Placer(
            name,
            section,
            executor,
            jobs.database,
            jobs.registry,
            holder,
            commands,
            ring=self._ring,
            dead_letters=DeadLetterHook(jobs.on_dead_letter, spawn_thread),
            default_timeout=round(config.worker.default_timeout * SECOND),
        )

    def start(self) -> None:
        """Start the threads. Raises ConfigError if the gateway's address cannot be taken."""
        if self.gateway is not None:
            self.gateway.start()
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
        if self.gateway is not None:
            self.gateway.stop()
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("%s hangs: its lease runs out by itself", thread.name)

    def _ring(self) -> None:
        """Tasks may run that could not before."""
        engine = self._jobs.engine
        engine.wake()
        engine.notifier.notify()

    def _ring_ends(self) -> None:
        """Tasks may have ended, too."""
        self._ring()
        on_ends = self._jobs.engine.engine_state.on_ends
        if on_ends is not None:
            on_ends()

    def _run(self, name: str, placer: Placer | WorkerPlacer) -> None:
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
                    log.warning("executor %s cannot start jobs: %s", name, error)
            except Exception as error:
                if logged.is_new(repr(error)):
                    log.exception("executor %s could not start jobs, trying again", name)
            if self._stopping.wait(self._rest[name]):
                break
            woken.wait(max(0.0, pause - (time.monotonic() - began)))
        try:
            with self._jobs.database.within(GOODBYE_S):
                placer.give_up()
        except StoreUnavailableError as error:
            log.info("the lease of executor %s was not given up: %s", name, error)
        placer.close()
