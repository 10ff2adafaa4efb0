"""An executor's engine in memory, for tests of what is placed and when. Its jobs do nothing by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scheduler import Scheduler
from scheduler.executors.ports import (
    Capabilities,
    ExecutorError,
    Finding,
    Job,
    PlacementPhase,
    Refused,
    Seen,
    Submitted,
)
from scheduler.store import placements, workers
from scheduler.store.db.tx import Tx


class NoCommands:
    def argv(self, executor: str, task_id: int, claim: int) -> Sequence[str]:
        return [executor, str(task_id), str(claim)]

    def env(self) -> Mapping[str, str]:
        return {}

    def own_env(self, store: str, executor: str, task_id: int, claim: int) -> Mapping[str, str]:
        return {}

    def without(self) -> Sequence[str]:
        return ()


class MemoryEngine:
    capabilities = Capabilities(names_unique=True)

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.phases: dict[str, PlacementPhase] = {}
        self.cancelled: list[str] = []
        self.asked = 0
        self.away = ""  # why it cannot be asked
        self.refuses: Refused | None = None  # all jobs, but for the name
        self.submissions = 0

    def tasks(self) -> list[int]:
        """The tasks of its jobs, in the order of their submissions."""
        return [int(job.labels["task"]) for job in self.jobs.values()]

    def attach(self, jobs: Scheduler, task_id: int) -> None:
        """As if the job of this task had taken its claim over."""
        (job,) = [one for one in self.jobs.values() if one.labels["task"] == str(task_id)]
        executor, task, claim = job.argv

        def work(tx: Tx) -> None:
            info = workers.WorkerInfo(f"job-{task}", "host", 1, "", (), workers.Capacity())
            worker = workers.register(tx, info, (), 10**12)
            assert placements.attach(tx, executor, int(task), int(claim), worker, "") is not None

        jobs.database.change(work)

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        self.submissions += 1
        if self.refuses is not None:
            return [replace(self.refuses, name=job.name) for job in jobs]
        self.jobs |= {job.name: job for job in jobs}
        self.phases |= dict.fromkeys((job.name for job in jobs), PlacementPhase.QUEUED)
        return [Submitted(job.name, _handle(job)) for job in jobs]

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        return {name: _handle(self.jobs[name]) for name in names if name in self.jobs}

    def observe(self) -> Sequence[Seen]:
        self.asked += 1
        if self.away:
            raise ExecutorError(self.away)
        return [Seen(name=name, handle=_handle(job), phase=self.phases[name]) for name, job in self.jobs.items()]

    def cancel(self, handles: Sequence[str], grace: float) -> None:
        self.cancelled += handles

    def logs(self, handle: str, tail: int) -> str | None:
        return None

    def forget(self, handles: Sequence[str]) -> None:
        self.jobs = {name: job for name, job in self.jobs.items() if _handle(job) not in handles}

    def check(self) -> Sequence[Finding]:
        return [Finding(not self.away, self.away or "it is there")]

    def close(self) -> None: ...


def _handle(job: Job) -> str:
    return f"handle-{job.labels['task']}-{job.labels['claim']}"
