"""Submissions: jobs made of placements and given to the backend, until it has answered for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from scheduler.backoff import bounded_wait
from scheduler.executors.backend_state import BackendLink
from scheduler.executors.ports import ExecutorError, Job, Submitted
from scheduler.model.fingerprint import describe
from scheduler.model.resources import resources_from_json
from scheduler.model.texts import counted
from scheduler.ports import FAILPOINTS, SECOND
from scheduler.store import placements
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.placements import RESERVED, Placement

RETRY_S = 5.0  # until a job is submitted again that the backend refused, if it does not say when
START_ALLOWANCE_S = 60.0  # of a job's limit, beside its task's timeout

log = logging.getLogger("scheduler.executors")


class JobLauncher(Protocol):
    """How a job is started."""

    def argv(self, executor: str, task_id: int, claim: int) -> Sequence[str]:
        """The command of a job, without secrets."""
        ...

    def env(self) -> Mapping[str, str]:
        """What is set beside what the job inherits."""
        ...

    def own_env(self, store: str, executor: str, task_id: int, claim: int) -> Mapping[str, str]:
        """What is set for this job alone. ``store``: the store's id."""
        ...

    def without(self) -> Sequence[str]:
        """The variables that the job does not inherit."""
        ...


class Submissions:
    """Submits for one executor. Nothing depends on what it stores of the answers.

    ``make``: the job of a placement; ``refused``: called with the executor's row among the workers, a placement whose
    job the backend never takes, and the reason. ``submit_grace``: seconds.
    """

    def __init__(
        self,
        name: str,
        link: BackendLink,
        database: Database,
        make: Callable[[Placement], Job],
        refused: Callable[[int, Placement, str], object],
        submit_grace: float,
    ) -> None:
        self._name = name
        self._link = link
        self._database = database
        self._make = make
        self._refused = refused
        self._grace = round(submit_grace * SECOND)

    def again(self, worker: int, pending: Sequence[Placement], now: int) -> None:
        """Submit what the backend refused for a while, and what it does not know after an answer that never came."""
        due, silent = [], []
        for placement in pending:
            if placement.state != RESERVED:
                continue
            if placement.next_at:
                due += [placement] if placement.next_at <= now else []
            elif now - (placement.submitted_at or placement.reserved_at) >= self._grace:
                silent.append(placement)
        if silent:
            known = self._find(silent)
            if known is None:
                return
            due += [placement for placement in silent if placement.name not in known]
        if due:
            self._database.change(lambda tx: placements.resubmitting(tx, [placement.key for placement in due]))
            self.submit(worker, due)

    def _find(self, silent: Sequence[Placement]) -> Mapping[str, str] | None:
        """Those of these jobs that the backend has after all; None if it is away."""
        executor = self._link.executor
        try:
            known = executor.find([placement.name for placement in silent]) if executor.capabilities.can_find else {}
        except ExecutorError as error:
            self._link.was_away(error)
            return None
        there = [(*placement.key, known[placement.name]) for placement in silent if placement.name in known]
        if there:
            self._database.change(lambda tx: placements.submitted(tx, there))
            log.info("executor %s: found %s again", self._name, counted(len(there), "job"))
        return known

    def submit(self, worker: int, found: Sequence[Placement]) -> None:
        """Submit jobs in one go, and store what the backend answers. Without an answer they are looked for later."""
        jobs = [job for placement in found if (job := self._made(worker, placement)) is not None]
        try:
            answers = self._link.executor.submit(jobs)
        except ExecutorError as error:
            self._link.was_away(error)
            return
        FAILPOINTS.hit("after submit")
        by_name = {placement.name: placement for placement in found}
        there: list[tuple[int, int, str]] = []
        later: list[tuple[int, int, int, str]] = []
        for answer in answers:
            placement = by_name[answer.name]
            if isinstance(answer, Submitted):
                there.append((*placement.key, answer.handle))
            elif answer.later:
                asked = bounded_wait(answer.after)
                wait = RETRY_S if asked is None else asked
                later.append((*placement.key, self._database.now() + round(wait * SECOND), answer.reason))
            else:
                self._refused(worker, placement, answer.reason)

        def work(tx: Tx) -> None:
            placements.submitted(tx, there)
            placements.postponed(tx, later)

        if there or later:
            self._database.change(work)
        FAILPOINTS.hit("after handle")

    def _made(self, worker: int, placement: Placement) -> Job | None:
        """The job of a placement; None, and its task is told, if none can be made of what is stored."""
        try:
            return self._make(placement)
        except Exception as error:  # of this one: the others are to be submitted
            self._refused(worker, placement, f"its job cannot be made: {describe(error).text}")
            return None


class TaskJobs:
    """The jobs of placements of tasks.

    ``default_timeout``: microseconds; ``grace``: seconds from SIGTERM to SIGKILL.
    """

    def __init__(
        self, name: str, database: Database, commands: JobLauncher, grace: float, default_timeout: int
    ) -> None:
        self._name = name
        self._database = database
        self._commands = commands
        self._grace = grace
        self._default_timeout = default_timeout

    def make(self, placement: Placement) -> Job:
        """The job of this placement."""
        identity, limit = self._database.same.identity, None
        store = "" if identity is None else identity.store
        timeout = self._default_timeout if placement.timeout is None else placement.timeout
        if timeout:
            limit = timeout / SECOND + START_ALLOWANCE_S + self._grace
        return Job(
            name=placement.name,
            argv=self._commands.argv(self._name, *placement.key),
            env={**self._commands.env(), **self._commands.own_env(store, self._name, *placement.key)},
            without=self._commands.without(),
            resources=resources_from_json(placement.resources),
            limit=limit,
            options={} if placement.options is None else msgspec.json.decode(placement.options),
            labels={
                "store": store,
                "task": str(placement.task_id),
                "claim": str(placement.claim),
                "kind": placement.kind or "",
                "queue": placement.queue or "",
            },
        )
