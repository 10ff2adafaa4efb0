"""The executor ``process``: jobs are processes on the daemon's machine, which outlive the daemon.

Each job has a directory of its name with files, so that any later daemon finds it: see ``job_process.py``; and
``job.json`` has its resources. ``job_fork_server.py`` has jobs forked by a process that has imported schedd already.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from scheduler.errors import ConfigError
from scheduler.executors.directory import DirectoryExecutor
from scheduler.executors.job_files import explained, write_private
from scheduler.executors.job_fork_server import JobTemplate, TemplateGoneError, arguments_of
from scheduler.executors.job_process import (
    ask_to_end,
    end_if_due,
    is_alive,
    lock_to_start,
    look,
    read_text,
    send_signal,
    start,
)
from scheduler.executors.ports import Capabilities, Finding, Job, Refused, Resources, Seen, Submitted
from scheduler.model.limits import parse_size, size_text
from scheduler.system import LINUX, NEEDS_LINUX
from scheduler.system.processes import cpus, memory_of_machine

_OPTIONS = ("nice",)
_RETRY_S = 5.0  # until a job is tried again for which no process could be started
_FULL_S = 1.0  # until a job is tried again for which there is no room


class _Kept(msgspec.Struct):
    """``job.json``. ``limit``: seconds that it may run."""

    resources: Resources
    limit: float | None
    began: float


class ProcessExecutor(DirectoryExecutor):
    """Jobs as processes of this machine. See the module."""

    capabilities = Capabilities(names_unique=True, has_logs=True)

    class Settings(msgspec.Struct, frozen=True, kw_only=True):
        """``directory``: of the jobs' files, for this executor alone. ``cpus``, ``memory``, ``gpus``: what all jobs
        together may ask for; 0 and None: what the machine has, which for gpus is none. A job that does not say how many
        cores it needs counts as one. ``prefix``: a command that
        starts each job, such as ``["systemd-run", "--user", "--scope", "-q"]``. ``warm``: jobs are forked by a process
        that has imported schedd already."""

        directory: str
        cpus: float = 0.0
        memory: str | None = None
        gpus: int = 0
        prefix: tuple[str, ...] = ()
        warm: bool = False

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__(name, settings.directory)
        self._prefix = settings.prefix
        self._started_in = os.getcwd()  # a task's module may change the daemon's
        if settings.cpus < 0 or settings.gpus < 0:
            raise ConfigError(f"executors.{name}: cpus and gpus are numbers from 0")
        if settings.warm and not LINUX:
            raise ConfigError(f"executors.{name}: warm {NEEDS_LINUX}")
        if settings.warm and settings.prefix:
            raise ConfigError(f"executors.{name}: prefix starts no job that is forked: leave out prefix or warm")
        self._template = JobTemplate() if settings.warm else None
        self._total = {
            "cpu": settings.cpus or float(cpus()),
            "memory": float(
                memory_of_machine()
                if settings.memory is None
                else parse_size(settings.memory, f"executors.{name}.memory", 1)
            ),
            "gpu": float(settings.gpus),
        }
        self._started: list[subprocess.Popen[bytes]] = []  # to be waited for, lest they stay as zombies

    # The port

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        """See :class:`scheduler.executors.ports.Executor`."""
        with explained(self._place):
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            taken = self._taken()
            return [self._submit(job, taken) for job in jobs]

    def observe(self) -> Sequence[Seen]:
        """See :class:`scheduler.executors.ports.Executor`. Kills what had its time to end."""
        self._started = [process for process in self._started if process.poll() is None]
        return super().observe()

    def cancel(self, handles: Sequence[str], grace: float) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        with explained(self._place):
            for place in self._places(handles):
                if is_alive(place):
                    ask_to_end(place, grace)
                    send_signal(place, signal.SIGTERM)

    def check(self) -> Sequence[Finding]:
        """See :class:`scheduler.executors.ports.Executor`."""
        found = list(super().check())
        if self._prefix and shutil.which(self._prefix[0]) is None:
            found.append(Finding(False, f"there is no {self._prefix[0]}, which prefix names"))
        total = self._total
        room = f"{total['cpu']:g} cores, {size_text(int(total['memory']))} of memory, {total['gpu']:g} GPUs"
        found.append(Finding(True, f"jobs may ask for {room} in all"))
        return found

    def close(self) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        if self._template is not None:
            self._template.close()

    # Starting

    def _submit(self, job: Job, taken: dict[str, float]) -> Submitted | Refused:
        unknown = sorted(set(job.options) - set(_OPTIONS))
        if unknown:
            known = ", ".join(_OPTIONS)
            return Refused(job.name, False, f"executor_options has {unknown[0]!r}; the type process has {known}")
        nice = job.options.get("nice", 0)
        if not isinstance(nice, int) or isinstance(nice, bool) or not 0 <= nice <= 19:
            return Refused(job.name, False, f"nice must be a whole number from 0 to 19, not {nice!r:.40}")
        refused = self._no_room(job, taken)
        if refused is not None:
            return refused
        place = self._place / job.name
        place.mkdir(mode=0o700, exist_ok=True)
        template, arguments = self._template, arguments_of(job.argv)
        if template is not None and arguments is not None:
            with suppress(TemplateGoneError):  # perhaps with the job started: then its lock is held
                return self._begin(job, place, taken, lambda lock: template.start(place, lock, arguments, job, nice))
        command = [*self._prefix, *(["nice", "-n", str(nice)] if nice else []), *job.argv]

        def run(lock: int) -> None:
            self._started.append(start(place, lock, command, job.env, job.without, self._started_in))

        return self._begin(job, place, taken, run)

    def _begin(
        self, job: Job, place: Path, taken: dict[str, float], start_it: Callable[[int], str | None]
    ) -> Submitted | Refused:
        """Start a job that has never run. ``start_it``: with its lock; returns why there is no process for it."""
        lock = lock_to_start(place)
        if lock is None:  # it has run, it runs, or another daemon is about to start it
            return Submitted(job.name, job.name)
        try:
            kept = _Kept(job.resources, job.limit, time.time())
            write_private(place / "job.json", msgspec.json.encode(kept).decode())
            try:
                trouble = start_it(lock)
            except OSError as error:
                trouble = error.strerror or type(error).__name__
        finally:
            os.close(lock)  # the job has it, too
        if trouble is not None:
            return Refused(job.name, True, f"no process could be started: {trouble}", _RETRY_S)
        for name, wanted in _wanted(job.resources).items():
            taken[name] += wanted
        return Submitted(job.name, job.name)

    def _taken(self) -> dict[str, float]:
        """What the jobs that live have asked for."""
        taken = {"cpu": 0.0, "memory": 0.0, "gpu": 0.0}
        for entry in os.scandir(self._place):
            kept = _kept(Path(entry.path))
            wanted = {} if kept is None else _wanted(kept.resources)
            if any(wanted.values()) and is_alive(Path(entry.path)):
                for name, amount in wanted.items():
                    taken[name] += amount
        return taken

    def _no_room(self, job: Job, taken: Mapping[str, float]) -> Refused | None:
        for name, wanted in _wanted(job.resources).items():
            asked, all_of = _amount(name, wanted), _amount(name, self._total[name])
            if wanted > self._total[name]:
                return Refused(job.name, False, f"it asks for {asked}, of {all_of} in all")
            if wanted and taken[name] + wanted > self._total[name]:
                text = f"it waits for {asked}: {_amount(name, taken[name])} of {all_of} are taken"
                return Refused(job.name, True, text, _FULL_S)
        disk = job.resources.disk_bytes
        if disk is not None:
            usage = shutil.disk_usage(self._place)
            if disk > usage.total:
                return Refused(job.name, False, f"it asks for {size_text(disk)} of disk, of {size_text(usage.total)}")
            if disk > usage.free:
                return Refused(job.name, True, f"it waits for {size_text(disk)} of disk: {size_text(usage.free)} free")
        return None

    def _look(self, place: Path) -> Seen | None:
        seen = look(place)
        if seen is not None and not seen.phase.over:
            kept = _kept(place)
            end_if_due(place, 0.0 if kept is None else kept.began, None if kept is None else kept.limit)
        return seen


def _kept(place: Path) -> _Kept | None:
    text = read_text(place / "job.json")
    with suppress(msgspec.MsgspecError):
        return None if text is None else msgspec.json.decode(text, type=_Kept)
    return None


def _wanted(resources: Resources) -> dict[str, float]:
    return {
        "cpu": 1.0 if resources.cpu is None else float(resources.cpu),
        "memory": float(resources.memory_bytes or 0),
        "gpu": float(resources.gpu or 0),
    }


def _amount(name: str, number: float) -> str:
    if name == "memory":
        return f"{size_text(int(number))} of memory"
    return f"{number:g} {'cores' if name == 'cpu' else 'GPUs'}"
