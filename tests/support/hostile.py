"""A hostile engine, and the placers that have to do with it: real processes, which the test kills.

Requests and answers are lost or late, jobs are started again behind the placer's back, while they run and after they
ended, and the engine forgets one job or all of them. Each fault is a line in the file ``faults``.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from scheduler.config.load import load
from scheduler.errors import StoreUnavailableError
from scheduler.executors.kubernetes import KubernetesExecutor
from scheduler.executors.ports import Executor, ExecutorError, Job, Refused, Seen, Submitted
from scheduler.executors.process import ProcessExecutor
from scheduler.executors.ray import RayExecutor
from scheduler.executors.service import make_executor
from scheduler.executors.slurm import SlurmExecutor
from support.kube_rig import start_second_pod
from support.placed import note
from support.placing import NAME, Place, Unreliable

STEP_S = 0.03
WAIT_S = 0.2  # of a placer that has no lease
SUBMIT_GRACE_S = 2.0
LATE_S = (0.2, 3 * SUBMIT_GRACE_S)  # how late a submission may be
SLOW_S = 0.3
SOON_S = 0.5  # that a job is started again; half of these come as late as submissions may, most after its end
FORGETS_S = (0.5, 2 * SUBMIT_GRACE_S)  # how long it knows no job


@dataclass(frozen=True)
class Fate:
    """How likely it is for each submission, or for each job, that something happens."""

    request_lost: float = 0.02
    answer_lost: float = 0.03
    late: float = 0.03
    slow: float = 0.02
    twice: float = 0.05
    requeued: float = 0.15
    all_forgotten: float = 0.005
    template_killed: float = 0.01
    files_removed: float = 0.01


class HostileEngine(Unreliable):
    """See the module. ``again``: another executor of the same engine, which knows nothing of this one's jobs."""

    def __init__(self, inner: Executor, again: Executor, directory: Path, chance: random.Random) -> None:
        super().__init__(inner)
        self.again = again
        self._directory = directory
        self._chance = chance
        self._fate = Fate()
        self._late: list[tuple[float, Job]] = []
        self._requeues: list[tuple[float, Job]] = []
        self._forgets_until = 0.0

    def _did(self, fault: str) -> None:
        note(str(self._directory / "faults"), fault)

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        chance, fate, now = self._chance.random, self._fate, time.monotonic()
        if chance() < fate.request_lost:
            self._did("requests lost")
            raise ExecutorError("the request was lost")
        if chance() < fate.late:
            self._did("submitted late")
            self._late += [(now + self._chance.uniform(*LATE_S), job) for job in jobs]
            raise ExecutorError("there was no answer")
        for job in jobs:
            self._hurt()
            if chance() < fate.requeued:
                latest = SOON_S if chance() < 0.5 else LATE_S[1]
                self._requeues.append((now + self._chance.uniform(0.0, latest), job))
        answers = self.inner.submit(jobs)
        if chance() < fate.twice:
            self._did("submitted twice")
            self.inner.submit(jobs)
        if chance() < fate.slow:
            self._did("answers late")
            time.sleep(SLOW_S)
        if chance() < fate.answer_lost:
            self._did("answers lost")
            raise ExecutorError("the answer was lost")
        return answers

    @property
    def knows_nothing(self) -> bool:
        return time.monotonic() < self._forgets_until

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        return {} if self.knows_nothing else self.inner.find(names)

    def observe(self) -> Sequence[Seen]:
        return [] if self.knows_nothing else self.inner.observe()

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for when, job in [one for one in self._late if one[0] <= now]:
            self._late.remove((when, job))
            self.inner.submit([job])
        for when, job in [one for one in self._requeues if one[0] <= now]:
            self._requeues.remove((when, job))
            self._did(start_again(self.again, job, self._chance))

    def _hurt(self) -> None:
        """Forget jobs, or lose what the engine consists of."""
        chance, fate = self._chance.random, self._fate
        if chance() < fate.all_forgotten:
            self._did("all forgotten")
            self._forgets_until = time.monotonic() + self._chance.uniform(*FORGETS_S)
        if not isinstance(self.inner, ProcessExecutor):
            return
        template = self.inner._template
        if template is not None and template._process is not None and chance() < fate.template_killed:
            self._did("templates killed")
            template._process.kill()
        if chance() < fate.files_removed:
            running = [seen.name for seen in self.inner.observe() if not seen.phase.over]
            if running:
                self._did("files removed")
                shutil.rmtree(self._directory / "jobs" / self._chance.choice(running), ignore_errors=True)


def start_again(executor: Executor, job: Job, chance: random.Random) -> str:
    """Start a job whatever the engine has by its name. Returns the fault."""
    if isinstance(executor, KubernetesExecutor):
        return start_second_pod(executor, job, chance)
    with suppress(ExecutorError):
        if isinstance(executor, SlurmExecutor):
            executor._submit(job)  # submit() looks for the name first
        elif isinstance(executor, RayExecutor):
            _, _, key = job.name.split("-", 2)
            executor.submit([replace(job, name=f"schedd-0-{key}")])  # Ray starts a name once
        else:
            executor.submit([job])
    return "requeued"


def make_again(directory: Path) -> Executor:
    """Another executor of the same engine, with a directory of its own."""
    file = directory / "again.toml"
    if not file.exists():
        text = (directory / "config.toml").read_text()
        file.write_text(text.replace(str(directory / "jobs"), str(directory / "again")))
    return make_executor(load(str(file), {}), NAME)


def main() -> None:
    """``python -m support.hostile URL DIRECTORY HOLDER SEED``: place tasks as long as the test lives."""
    url, where, holder, seed = sys.argv[1:]
    directory = Path(where)
    place = Place(url, directory, "", holder=holder)
    engine = HostileEngine(place.engine.inner, make_again(directory), directory, random.Random(seed))
    place.placer._link.executor = engine
    parent = os.getppid()
    while os.getppid() == parent:
        place.placer._link._ask_again = 0.0  # it is asked at once again: this is about faults, not about patience
        with suppress(StoreUnavailableError, ExecutorError):
            place.placer.step()
            if place.placer.leads:
                engine.tick()
        time.sleep(STEP_S if place.placer.leads else WAIT_S)


if __name__ == "__main__":
    main()
