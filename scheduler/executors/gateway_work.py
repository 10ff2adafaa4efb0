"""What a gateway does for a job: each message is one transaction, under the fence of the job's own claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scheduler.app import Scheduler
from scheduler.config.model import Config
from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.dispatch.quarantine import count_crashes, judge_crashes
from scheduler.engine.gateway.messages import Attach, Attached, GatewayLoad, Loaded, Sync, Synced, Terms
from scheduler.engine.maintenance.jobs import FORCED_TEXT
from scheduler.engine.processes.messages import checked
from scheduler.errors import PermanentError, SchedulerError
from scheduler.model.capacity import Capacity
from scheduler.model.checkpoint import failure_of
from scheduler.model.outcome import AttemptEnd, Lifetimes, Outcome, OutcomeColumns
from scheduler.model.rollup import RollupCounter
from scheduler.ports import SECOND
from scheduler.store import gateway_jobs, placements, rollups, workers
from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints
from scheduler.store.durable.resume import resume
from scheduler.store.graph import parents
from scheduler.store.requests import children
from scheduler.store.requests.handle import answer
from scheduler.store.requests.request import Answer, AttemptRequest
from scheduler.store.tasks import attempts, control, stalls
from scheduler.store.tasks.claim import DUE_AT, GROUP_OF, Claimed, mark_running, read_claimed
from scheduler.store.tasks.complete import Completion
from scheduler.store.tasks.salvage import complete_one_by_one
from scheduler.store.workers import WorkerInfo

MAX_LOG = 1_000_000  # characters of an attempt's output


class NotHeldError(SchedulerError):
    """The claim is over, or another job's."""


class NotItsOwnError(SchedulerError):
    """A job asks for what its token is not good for."""


class JobKey(NamedTuple):
    """The claim that a token is good for."""

    executor: str
    task_id: int
    claim: int

    @property
    def pair(self) -> tuple[int, int]:
        return self.task_id, self.claim


class _Done(NamedTuple):
    """``rings``: whether tasks may run that could not before."""

    answer: Synced
    rings: bool = False


class GatewayWork:
    """Does what jobs ask for. ``ring``: wakes engines and executors. From any thread. Methods raise
    StoreUnavailableError, NotHeldError, and ValueError for what no job sends."""

    def __init__(self, config: Config, jobs: Scheduler, ring: Callable[[], None]) -> None:
        self._jobs = jobs
        self._ring = ring
        self._config = config
        kept = config.retention
        self._lease = round(config.worker.lease * SECOND)
        self._lifetimes = Lifetimes(round(kept.results * SECOND), round(kept.keys * SECOND))

    def store(self) -> str | None:
        """The id of the store; None while it is not known."""
        identity = self._jobs.database.same.identity
        return None if identity is None else identity.store

    def look(self, key: JobKey) -> Terms:
        """What the claim is of."""
        with self._jobs.database.read() as tx:
            found = placements.kind_of_claim(tx, *key.pair)
            now = tx.now
        if found is None:
            raise NotHeldError(_over(key))
        worker, gateway = self._config.worker, self._config.gateway
        return Terms(*found, worker.lease, round(worker.default_timeout * SECOND), gateway.max_body, now)

    def attach(self, key: JobKey, message: Attach) -> Attached:
        """Take the claim over for a new worker; or say again that this process has done so."""
        incarnation = gateway_jobs.job_incarnation(*key.pair, message.life)
        info = WorkerInfo(incarnation, message.host, message.pid, message.version, (), Capacity())

        def work(tx: Tx) -> Attached:
            worker = gateway_jobs.find(tx, incarnation)
            if worker is not None:
                held = gateway_jobs.held(tx, worker, incarnation, *key.pair)
                taken = None if held is None else read_claimed(tx, key.task_id)
            else:
                worker = workers.register(tx, info, [], self._lease)
                taken = placements.attach(tx, *key, worker, "")
            if taken is None:
                raise NotHeldError(_over(key))
            mark_running(tx, worker, [(*key.pair, tx.now)])
            recorded = resume(tx, [key.pair]) if key.claim > 1 else {}
            return Attached(worker, self._dated(taken), recorded.get(key.task_id), tx.now)

        return self._jobs.database.change(work)

    def _dated(self, claimed: Claimed) -> Claimed:
        identity = self._jobs.database.same.identity
        if identity is None or not identity.claims_above:
            return claimed
        return claimed._replace(epoch=identity.epoch_of(claimed.original_id or claimed.id))

    def sync(self, key: JobKey, message: Sync) -> Synced:
        """Write what there is to be written; whether the task is to end."""
        incarnation = gateway_jobs.job_incarnation(*key.pair, message.life)
        writes = message.renew or message.asked or message.outcome or message.log or message.take or message.leaves
        if not writes:
            with self._jobs.database.read() as tx:
                held = gateway_jobs.held(tx, message.worker, incarnation, *key.pair)
                if held is None:
                    return Synced(False, tx.now)
                if not (held.cancelled and control.forced(tx, [key.pair])):
                    return Synced(True, tx.now, cancelled=held.cancelled)
        done = self._jobs.database.change(lambda tx: self._write(tx, key, incarnation, message))
        if done.rings:
            self._ring()
        return done.answer

    def _write(self, tx: Tx, key: JobKey, incarnation: str, message: Sync) -> _Done:
        worker = message.worker
        # First: it keeps what another daemon does for the same job meanwhile waiting, until the commit.
        renewed = workers.renew(tx, worker, self._lease, incarnation=incarnation)
        held = gateway_jobs.held(tx, worker, incarnation, *key.pair) if renewed else None
        if held is None:
            found = attempts.recorded(tx, [key.pair]).get(key.pair) if message.outcome is not None else None
            mine = found is not None and found is not AttemptEnd.LOST  # by a commit whose answer was lost
            if renewed and message.leaves:
                workers.stop(tx, worker)
            recorded = None if message.outcome is None else mine
            return _Done(Synced(False, tx.now, recorded=recorded, end=found if mine else None))
        given = Synced(True, tx.now, renewed=True, cancelled=held.cancelled)
        woken = 0
        if message.asked:
            # A message may come twice: what is recorded is not done again.
            asked = [AttemptRequest(*key.pair, one.what, one.args, True) for one in message.asked]
            strange = {i: refusal for i, one in enumerate(asked) if (refusal := _strange(tx, one)) is not None}
            usual = [one for i, one in enumerate(asked) if i not in strange]
            answers, woken = answer(tx, worker, usual, one_by_one=True)
            rest = iter(answers)
            given.answers = [strange[i] if i in strange else next(rest) for i in range(len(asked))]
        if message.log:
            attempts.write_values(tx, [(key.task_id, f"log:{key.claim}", message.log[-MAX_LOG:])])
        if message.outcome is not None:
            rings = self._record(tx, key, worker, message.outcome, given)
        else:
            rings = self._take_away(tx, key, worker, message.take, held, given)
        if message.leaves and given.recorded is not None:
            workers.stop(tx, worker)
        return _Done(given, bool(woken) or rings)

    def _take_away(
        self, tx: Tx, key: JobKey, worker: int, why: str | None, held: gateway_jobs.HeldJob, given: Synced
    ) -> bool:
        """Take the claim from a handler that stalls, or whose task is cancelled by force."""
        forced = held.cancelled and bool(control.forced(tx, [key.pair]))
        if why is None and not forced:
            return False
        text, end, error = (
            (FORCED_TEXT, AttemptEnd.CANCELLED, "Cancelled") if forced else (why, AttemptEnd.LOST, "Stalled")
        )
        began = held.started_at or tx.now
        claimed = read_claimed(tx, key.task_id)
        taken = stalls.reclaim(tx, worker, [(*key.pair, began, str(text)[:500])], end=end, error_class=error)
        if taken.again and claimed is not None and self._config.metrics.rollups:
            counter = RollupCounter(GROUP_OF, DUE_AT)
            counter.add_taken(tx.now, claimed.kind, claimed.queue, end, tx.now - began)
            rollups.add(tx, counter.take())
        given.held = not taken.again
        return bool(taken.again)

    def _record(self, tx: Tx, key: JobKey, worker: int, outcome: Outcome, given: Synced) -> bool:
        """Write how the attempt ended. Returns whether it did: another transaction may have the row."""
        claimed = read_claimed(tx, key.task_id)
        assert claimed is not None, "the claim is held"
        kind = self._jobs.registry.get(claimed.kind)
        outcome = checked(outcome, claimed)
        attempt = Attempt(claimed, kind, (claimed.priority, 0), 0.0)  # type: ignore[arg-type]  # of crashes no kind is read
        pairs = [(attempt, outcome)]
        died = outcome.end is AttemptEnd.LOST
        if died:
            pairs = judge_crashes(tx, pairs)
            outcome = pairs[0][1]
        completion = complete_one_by_one(tx, worker, [outcome], self._lifetimes)
        if died:
            count_crashes(tx, pairs, completion)
        if completion.deferred:
            return False
        given.recorded = not completion.lost
        given.end = completion.overridden.get(key.task_id)
        if given.end is None and died:
            given.end = outcome.end
        given.state = completion.ended.get(key.task_id)
        self._count(tx, attempt, outcome, completion)
        return True

    def _count(self, tx: Tx, attempt: Attempt, outcome: Outcome, completion: Completion) -> None:
        if self._config.metrics.rollups:
            counter = RollupCounter(GROUP_OF, DUE_AT)
            lost = {(one.task_id, one.claim) for one in completion.lost}
            counter.add(tx.now, [attempt], OutcomeColumns.of([outcome]), lost, completion.overridden)
            rollups.add(tx, counter.take())

    def load(self, key: JobKey, message: GatewayLoad) -> Loaded:
        """What a handler reads, while the claim is its own. Raises NotItsOwnError, too."""
        incarnation = gateway_jobs.job_incarnation(*key.pair, message.life)
        with self._jobs.database.read() as tx:
            if gateway_jobs.held(tx, message.worker, incarnation, *key.pair) is None:
                raise NotHeldError(_over(key))
            try:
                return Loaded(_read(tx, key, message.worker, message.what, message.args))
            except NotItsOwnError:
                raise
            except SchedulerError as error:
                return Loaded(error=failure_of(error))


def _strange(tx: Tx, asked: AttemptRequest) -> Answer | None:
    """The answer to a job that would await a task of which nothing that it was given speaks; None to all else."""
    items = asked.args.get("items")
    if asked.what != "await_tasks" or not isinstance(items, list) or not all(type(one) is int for one in items):
        return None
    strangers = gateway_jobs.not_given(tx, asked.task_id, items)
    if not strangers:
        return None
    error = PermanentError(
        f"task {asked.task_id} may not await task {min(strangers)} through the gateway: it has not spawned it and does "
        "not depend on it, and no payload, header, event or result that it was given has the id"
    )
    return {"held": True, "error": failure_of(error)}


def _read(tx: Tx, key: JobKey, worker: int, what: str, args: Mapping[str, Any]) -> Any:
    if what == "recorded":
        found = checkpoints.read(tx, worker, *key.pair)
        return None if found is None else [(name, *recorded) for name, recorded in found.items()]
    if what == "results":
        return parents.parent_results(tx, key.task_id)
    if what == "failures":
        return parents.dependency_failures(tx, key.task_id)
    if what == "ends":
        ids = args.get("ids")
        if not isinstance(ids, Sequence) or not all(isinstance(one, int) for one in ids):
            raise ValueError("ids is a list of numbers")
        strangers = gateway_jobs.not_of(tx, key.task_id, ids)
        if strangers:
            raise NotItsOwnError(
                f"task {key.task_id} has neither spawned nor awaited task {min(strangers)}, and does not depend on it"
            )
        return children.results(tx, ids)
    raise ValueError(f"nothing is read as {what!r:.40}")


def _over(key: JobKey) -> str:
    why = "it was taken back, or another job has taken it over"
    return f"claim {key.claim} of task {key.task_id} is not this job's: {why}"
