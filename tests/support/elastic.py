"""Elastic workers of a real engine: their placer, stepped by hand, and the jobs that it starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scheduler import Resources, Scheduler
from scheduler.config.load import load
from scheduler.executors.ports import Job
from scheduler.executors.service import JobCommands, make_executor
from scheduler.executors.worker_placer import WorkerPlacer
from scheduler.model.placement import name_prefix
from scheduler.store import reaper, worker_jobs
from scheduler.store.read.explain import why
from support.executor_rigs import Rig
from support.job_ends import over
from support.placed import Work
from support.placing import NAME, TESTS, give_an_id

PATIENCE = 180.0  # seconds: the machine may be busy


class Elastic:
    """``settings``: more lines of ``[executors.it]``."""

    def __init__(self, rig: Rig, url: str, directory: Path, settings: str = "") -> None:
        self.notes = directory / "notes"
        give_an_id(url)
        file = directory / "config.toml"
        file.write_text(
            f'[store]\nurl = "{url}"\n[tasks]\nmodules = ["support.placed"]\npath = ["{TESTS}"]\n[worker]\nlease = 5\n'
            f'[executors.{NAME}]\n{rig.settings(directory)}place = "worker"\nqueues = ["a"]\nmax_workers = 1\n'
            f'scale_when_older = 0\ncooldown = 0\ngrace = 2\nidle = 0.5\nlifetime = "10m"\n{settings}'
        )
        config = load(str(file), {})
        section = config.executors[NAME]
        commands = JobCommands(config, section)
        self._blocker = ""
        self.jobs = Scheduler(url)
        self.jobs.register(Work)
        self.executor = make_executor(config, NAME)
        self._placer = WorkerPlacer(
            NAME, section, self.executor, self.jobs.database, self.jobs.registry, "daemon", commands, ring=lambda: None
        )  # fmt: skip

    def schedule(self, how: str = "plain") -> int:
        return self.jobs.task(Work(str(self.notes), how)).executor(NAME).queue("a").schedule()

    def until(self, reached: Callable[[], object]) -> None:
        """Let the placer look until something is so."""
        deadline = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < deadline, self.executor.observe()
            self._placer.step()
            self.jobs.database.change(lambda tx: reaper.reap(tx))
            time.sleep(0.1)

    def lines(self, what: str) -> list[str]:
        """What the bodies have noted of this kind."""
        found = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [line for line in found if line.startswith(what)]

    def why(self, task: int) -> str:
        with self.jobs.database.read() as tx:
            return str(why(tx, task))

    def states(self, tasks: Sequence[int]) -> list[str]:
        return [self.jobs.get_task(task).state.value for task in tasks]

    def ended(self, tasks: Sequence[int]) -> bool:
        return all(self.jobs.get_task(task).state.terminal for task in tasks)

    @property
    def workers(self) -> list[str]:
        """The jobs of those that are not over yet."""
        with self.jobs.database.read() as tx:
            return [one.name for one in worker_jobs.open_workers(tx, NAME)]

    @property
    def known(self) -> list[str]:
        """The workers' jobs that the engine has not forgotten: other tests may have some, too."""
        with self.jobs.database.read():
            identity = self.jobs.database.same.identity
        assert identity is not None
        ours = f"{name_prefix(identity.store)}w"
        return [seen.name for seen in self.executor.observe() if seen.name.startswith(ours)]

    def block(self, cpus: int) -> None:
        """Have a job that is not a worker take so many cores, and wait until it runs."""
        self._blocker = f"schedd-0-{int.from_bytes(os.urandom(4))}-1"  # Ray knows a name as long as it runs
        job = Job(name=self._blocker, argv=["/bin/sleep", "3600"], resources=Resources(cpu=cpus))
        self.executor.submit([job])
        self.until(lambda: any(seen.name == job.name and seen.phase == "running" for seen in self.executor.observe()))

    def unblock(self) -> None:
        """End that job."""
        self.executor.cancel(list(self.executor.find([self._blocker]).values()), 1.0)

    def close(self) -> None:
        """End what the engine has of this, and wait for it."""
        ours = {*self.known, self._blocker}
        self.executor.cancel([seen.handle for seen in self.executor.observe() if seen.name in ours], 1.0)
        for seen in self.executor.observe():
            if seen.name in ours:
                over(self.executor, seen.name)
        self.executor.close()
        self.jobs.close()
