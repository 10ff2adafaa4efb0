"""An engine in memory whose jobs are workers, for tests of how many are started. A test begins and ends them."""

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
from scheduler.model.capacity import Capacity
from scheduler.store import worker_jobs, workers
from scheduler.store.db.tx import Tx


class WorkerCommands:
    def worker_argv(self, executor: str, job: str, *, stays: bool) -> Sequence[str]:
        return [executor, job, "stays" if stays else "ends"]

    def env(self) -> Mapping[str, str]:
        return {}


class WorkerEngine:
    capabilities = Capabilities(names_unique=True)

    def __init__(self, jobs: Scheduler) -> None:
        self.jobs = jobs
        self.submitted: list[Job] = []  # each submission that came
        self.phases: dict[str, PlacementPhase] = {}
        self.workers: dict[str, int] = {}  # those that work, by their jobs
        self.cancelled: list[str] = []
        self.lose_request = self.lose_answer = False  # of the next submission
        self.forgets = False
        self.refuses: Refused | None = None

    # What a test does

    @property
    def waiting(self) -> list[str]:
        return [name for name, phase in self.phases.items() if phase is PlacementPhase.QUEUED]

    def begin(self, name: str) -> bool:
        """The job begins. False: it finds that it is not wanted, and ends."""

        def work(tx: Tx) -> int:
            info = workers.WorkerInfo(f"of {name} {len(self.workers)}", "host", 1, "", ("a",), Capacity(job=name))
            worker = workers.register(tx, info, list(self.jobs.registry), 10**12)
            return worker if worker_jobs.attach(tx, name, "", again=False) else _give_up(tx, worker)

        worker = self.jobs.database.change(work)
        self.phases[name] = PlacementPhase.RUNNING if worker else PlacementPhase.FAILED
        if worker:
            self.workers[name] = worker
        return bool(worker)

    def end(self, name: str) -> None:
        """The worker ends as it should."""
        worker = self.workers.pop(name)
        self.jobs.database.change(lambda tx: workers.stop(tx, worker))
        self.phases[name] = PlacementPhase.SUCCEEDED

    def kill(self, name: str) -> None:
        """It is killed: nothing is written, but the engine sees it."""
        self.workers.pop(name, None)
        self.phases[name] = PlacementPhase.FAILED

    # The port

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        if self.lose_request:
            self.lose_request = False
            raise ExecutorError("the request was lost")
        if self.refuses is not None:
            return [replace(self.refuses, name=job.name) for job in jobs]
        self.submitted += jobs
        self.phases |= {job.name: PlacementPhase.QUEUED for job in jobs if job.name not in self.phases}
        if self.lose_answer:
            self.lose_answer = False
            raise ExecutorError("the answer was lost")
        return [Submitted(job.name, job.name) for job in jobs]

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        return {name: name for name in names if name in self.phases}

    def observe(self) -> Sequence[Seen]:
        if self.forgets:
            return []
        return [Seen(name=name, handle=name, phase=phase, reason="Resources") for name, phase in self.phases.items()]

    def cancel(self, handles: Sequence[str], grace: float) -> None:
        self.cancelled += handles
        for name in handles:
            if name in self.phases and not self.phases[name].over:
                self.workers.pop(name, None)
                self.phases[name] = PlacementPhase.CANCELLED

    def logs(self, handle: str, tail: int) -> str | None:
        return None

    def forget(self, handles: Sequence[str]) -> None:
        self.phases = {name: phase for name, phase in self.phases.items() if name not in handles}

    def check(self) -> Sequence[Finding]:
        return []

    def close(self) -> None: ...


def _give_up(tx: Tx, worker: int) -> int:
    tx.run("DELETE FROM schedd_workers WHERE id = :worker", worker=worker)
    return 0
