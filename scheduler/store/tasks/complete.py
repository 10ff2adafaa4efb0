"""Recording how attempts ended under the fence, and what follows for other tasks: one transaction, lists only.

The fence: a row is ours while (worker, claim) match and it is claimed or running (see ``dialect.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from scheduler.model.outcome import AttemptEnd, Lifetimes, Outcome, OutcomeColumns
from scheduler.model.state import CANCELLED, DEAD, END_BIT, FAILED, RETRY, SCHEDULED, SUCCESS, SUSPENDED, TaskState
from scheduler.store.db.dialect import fence
from scheduler.store.db.lazy import sa
from scheduler.store.db.statements import Columns, change_across, run_across, run_over
from scheduler.store.db.tx import Tx
from scheduler.store.durable import waits
from scheduler.store.graph import debug_log
from scheduler.store.graph.release import release
from scheduler.store.predicates import IS_HELD, is_parent
from scheduler.store.tasks import attempts
from scheduler.store.tasks.attempts import INLINE
from scheduler.store.tasks.enqueue import enqueue
from scheduler.store.tasks.outcome_locks import lock_descendants, lock_ends
from scheduler.store.tasks.ready_children import ReadyChildren, release_and_collect
from scheduler.store.tasks.replace import apply_deferred

T = "schedd_tasks"  # in full, since RETURNING knows no alias on SQLite
_HELD_BY_US = fence(IS_HELD, T)
# What replaced it meanwhile is to run (see replace.py); else a cancel that was asked for before the outcome commits
# wins over that.
_NEXT = (
    f"CASE WHEN {T}.rerun = 1 THEN {SCHEDULED} "
    f"WHEN {T}.cancel_requested IS NOT NULL THEN {CANCELLED} ELSE {{state}} END"
)
# Whether it is a parent at all: mostly none is, and then there is nothing to release.
_PARENT = is_parent(f"{T}.id")
_GIVEN = f"{T}.id, {T}.claim, {T}.state, {_PARENT}"
_RESULT_TTL = f"coalesce({T}.result_ttl, :result_ttl)"
_KEPT = f"coalesce({T}.key_retention, :kept)"  # as long as its key is held, a result is there
# In one expression with ``j``, as in fence(): as conditions of the table's own they make PostgreSQL expect one row.
_PLAIN = (
    f"CASE WHEN {T}.claim = j.claim THEN {T}.cancel_requested IS NULL AND {T}.rerun = 0 AND {T}.held_key IS NULL "
    "ELSE false END"
)
# The usual success sets no column that an index but the four on ``state`` has: a fifth less to do on SQLite.
_COMPLETE_COMMON = f"""
WITH {{rows}}
UPDATE schedd_tasks SET state = {SUCCESS}, worker = NULL, started_at = j.started, finished_at = j.finished,
  result = {{result}}, result_until = :now + {_RESULT_TTL}
FROM j WHERE {T}.id = j.id AND {{among {T}}} {_HELD_BY_US} AND {_PLAIN}
"""
_COMPLETE_COMMON_RETURNING = f"{_COMPLETE_COMMON} RETURNING {_GIVEN}".replace("{result}", "j.result")
# With the attempts' records: PostgreSQL is asked once less. The answer is one row, which says (task id, claim) of those
# written only if it is not all of them.
_SUCCEED_AND_RECORD = f"""
WITH {{{{rows}}}}, {{patience}} done AS (
  UPDATE schedd_tasks SET state = {SUCCESS}, worker = NULL, started_at = j.started, finished_at = j.finished,
    result = j.result, result_until = :now + {_RESULT_TTL}
  FROM j {{patiently}} WHERE {T}.id = j.id AND {{{{among {T}}}}} {_HELD_BY_US} AND {_PLAIN}
  RETURNING {T}.id, {T}.claim {{parent}}
), recorded AS (
  INSERT INTO schedd_attempts (worker, task_id, claim, number, claimed_at, started_at, finished_at, outcome)
  SELECT :worker, j.id, j.claim, j.number, j.claimed, j.started, j.finished, j.outcome
  FROM j JOIN done ON done.id = j.id AND done.claim = j.claim WHERE j.started IS NOT NULL
)
SELECT CASE WHEN count(*) < :all THEN array_agg(ARRAY[id, claim]) END, count(*), {{more}} FROM done
"""
_SUCCEED_LOCKED = _SUCCEED_AND_RECORD.format(
    patience="",
    patiently="",
    parent=f", {_PARENT} AS parent",
    more=f"array_agg(id) FILTER (WHERE parent), EXISTS ({waits.ANY_WAITER})",
)
# ``lock_timeout`` bounds the wait for each locked row. Dependents and waiters need a second statement: this one's
# snapshot is older than the commits that it waited for.
_ROW_LOCK_TIMEOUT = "5ms"
_SUCCEED_UNLOCKED = _SUCCEED_AND_RECORD.format(
    patience="patience AS MATERIALIZED (SELECT current_setting('lock_timeout') AS usual, "
    "set_config('lock_timeout', :patience, true)),",
    patiently=", patience",
    parent="",
    more="(SELECT usual FROM patience)",
)
_FOLLOWS = f"""
SELECT ARRAY(SELECT i.id FROM unnest(CAST(:ids AS bigint[])) i(id) WHERE {is_parent("i.id")}),
  EXISTS ({waits.ANY_WAITER}), set_config('lock_timeout', :usual, true)
"""
# Mostly none of these is a parent: one look at the index says so, and no end is looked up by itself.
_FOLLOWS_SQLITE = f"""
SELECT EXISTS (SELECT 1 FROM schedd_edges WHERE parent BETWEEN :first AND :last), EXISTS ({waits.ANY_WAITER})
"""
_SUCCEED = f"""
WITH {{rows}}
UPDATE schedd_tasks SET state = {_NEXT.format(state=SUCCESS)}, worker = NULL,
  started_at = j.started, finished_at = j.finished, result = j.result,
  result_until = :now + CASE WHEN {T}.held_key IS NOT NULL AND {_KEPT} > {_RESULT_TTL}
    THEN {_KEPT} ELSE {_RESULT_TTL} END,
  key_until = CASE WHEN {T}.held_key IS NOT NULL THEN :now + {_KEPT} END,
  held_key = CASE WHEN {T}.cancel_requested IS NOT NULL AND {T}.rerun <> 1 THEN NULL ELSE {T}.held_key END
FROM j WHERE {T}.id = j.id AND {{among {T}}} {_HELD_BY_US} RETURNING {_GIVEN}
"""
# All that is stored of an error is of one error. The reason of a cancel says more than what the handler raised on the
# way.
_OF_ERROR = f"CASE WHEN j.error IS NULL OR {T}.cancel_requested IS NOT NULL THEN {T}.{{}} ELSE j.{{}} END"
_SUCCEED_COLUMNS: Columns = (("id", int), ("claim", int), ("started", int), ("finished", int), ("result", str))
_RECORDED_COLUMNS: Columns = (*_SUCCEED_COLUMNS, ("number", int), ("claimed", int), ("outcome", int))
_OTHER = f"""
WITH {{rows}}
UPDATE schedd_tasks SET state = {_NEXT.format(state="j.state")}, worker = NULL,
  started_at = j.started, finished_at = j.finished, attempt = {T}.attempt - j.refund,
  run_at = coalesce(j.run_at, {T}.run_at),
  error = {_OF_ERROR.format("error", "error")},
  error_class = {_OF_ERROR.format("error_class", "error_class")},
  fingerprint = {_OF_ERROR.format("fingerprint", "fingerprint")},
  status_code = {_OF_ERROR.format("status_code", "status")},
  held_key = CASE WHEN {T}.rerun <> 1
      AND ({T}.cancel_requested IS NOT NULL OR j.state IN ({FAILED}, {DEAD}, {CANCELLED}))
    THEN NULL ELSE {T}.held_key END,
  suspect = j.suspect * {T}.suspect, lane = CASE WHEN j.suspect = 0 THEN ltrim({T}.lane, '!') ELSE {T}.lane END
FROM j WHERE {T}.id = j.id AND {{among {T}}} {_HELD_BY_US} RETURNING {_GIVEN}
"""
_OTHER_COLUMNS: Columns = (
    ("id", int),
    ("claim", int),
    ("state", int),
    ("run_at", int),
    ("refund", int),
    ("started", int),
    ("finished", int),
    ("error", str),
    ("error_class", str),
    ("fingerprint", str),
    ("status", int),
    ("suspect", int),
)
_LOCK_NOT_AVAILABLE = "55P03"

DEFAULT_LIFETIMES = Lifetimes()


class RowLocked(Exception):
    """Another transaction holds a row that this one wrote without locking first: roll back."""


class CompletionResult(NamedTuple):
    """What writing the rows did.

    ``ended``: tasks with their end. ``accepted``, ``lost``: outcomes by whether the fence held. ``parents``: tasks with
    children. ``overridden``: tasks that a cancel or a replacement decided. ``recorded``: (task id, claim) of attempts
    that are recorded already.
    """

    ended: dict[int, TaskState]
    accepted: Sequence[Outcome]
    lost: list[Outcome]
    parents: list[int]
    overridden: list[int]
    recorded: Collection[object] = ()
    awaited: bool | None = None  # whether a task awaits one of these, if that was read
    plain: bool = False  # whether all are usual successes; then the parents among them are not read yet

    def plus(self, other: CompletionResult) -> CompletionResult:
        return CompletionResult(
            self.ended | other.ended,
            [*self.accepted, *other.accepted],
            self.lost + other.lost,
            self.parents + other.parents,
            self.overridden + other.overridden,
            {*self.recorded, *other.recorded},
            other.awaited,  # not the answer from before the others were locked
        )


class Completion(NamedTuple):
    """What became of a list of outcomes.

    ``ended``: tasks that reached a terminal state. ``lost``: the fence no longer held, so nothing was changed.
    ``deferred``: another transaction holds the row; the next dispatch cycle tries again. ``ready``: how many dependents
    may run now. ``overridden``: the recorded end of each attempt whose own outcome was overridden.
    ``ready_children``: further dependents that may run now, which the caller has to write.
    """

    ended: dict[int, TaskState]
    lost: list[Outcome]
    deferred: list[Outcome]
    ready: int
    overridden: Mapping[int, AttemptEnd] = MappingProxyType({})
    ready_children: ReadyChildren | None = None


def finish(
    tx: Tx,
    worker: int,
    outcomes: Sequence[Outcome],
    ends: OutcomeColumns | None = None,
    *,
    skip_locks: bool = False,
    before_write: Callable[[], object] | None = None,
    caller_claims: bool = False,
    lifetimes: Lifetimes = DEFAULT_LIFETIMES,
) -> Completion:
    """Write the outcomes that ``worker`` still holds, their attempts and what follows for dependents.

    ``ends``: the outcomes as columns, if the caller has them. ``before_write`` (SQLite): called before the longest
    statement, if one statement writes all outcomes. ``caller_claims`` (SQLite): the caller writes the
    ``ready_children``. ``lifetimes``: those of results and keys by default. ``skip_locks`` (PostgreSQL): write the
    usual successes without locking them first; raises RowLocked if another transaction holds one of them or a waiting
    descendant. The caller then rolls back and locks first.
    """
    deferred: list[Outcome] = []
    unbroken: Mapping[int, int] = {}
    ends = OutcomeColumns.of(outcomes) if ends is None else ends
    if tx.dialect.name == "sqlite":
        wrote = write(tx, worker, outcomes, ends, before_write=before_write, lifetimes=lifetimes)
    elif skip_locks:
        wrote, rest, unbroken = complete_unlocked(tx, worker, outcomes, ends, lifetimes)
        if rest:
            rest, deferred, also = lock_ends(tx, worker, rest)
            more = write(tx, worker, rest, OutcomeColumns.of(rest), usual=False, lifetimes=lifetimes)
            wrote, unbroken = wrote.plus(more), {**unbroken, **also}
    else:
        outcomes, deferred, unbroken = lock_ends(tx, worker, outcomes)
        ends = OutcomeColumns.of(outcomes) if deferred else ends
        wrote = write(tx, worker, outcomes, ends, lifetimes=lifetimes)
    ends = ends if wrote.accepted is outcomes else OutcomeColumns.of(wrote.accepted)
    attempts.record(tx, worker, wrote.accepted, ends, wrote.recorded)
    if any(ends.results) or any(ends.logs):
        attempts.keep_long(tx, wrote.accepted)
    return _follow_up(tx, wrote, ends, deferred, unbroken, caller_claims)


def _follow_up(
    tx: Tx,
    wrote: CompletionResult,
    ends: OutcomeColumns,
    deferred: list[Outcome],
    unbroken: Mapping[int, int],
    caller_claims: bool,
) -> Completion:
    """Release the dependents and wake the waiters of tasks that have ended."""
    ready = 0
    if SUSPENDED in ends.states:  # first, so that an end in this list does not wake a task that no longer waits for it
        paused = [(o.task_id, o.claim) for o in wrote.accepted if o.state == SUSPENDED]
        ready += waits.suspended(tx, paused)
    ready_children, parents, awaited = None, wrote.parents, wrote.awaited
    if wrote.plain and wrote.ended:
        ((has_parents, awaited),) = tx.rows(_FOLLOWS_SQLITE, first=min(wrote.ended), last=max(wrote.ended))
        if has_parents:
            ready_children = release_and_collect(tx, wrote.ended) if caller_claims else None
            parents = [*wrote.ended] if ready_children is None else []
    released = {i: wrote.ended[i] for i in parents if i in wrote.ended}
    if wrote.overridden:  # what a cancelled task spawned ends with it
        released |= {i: wrote.ended[i] for i in wrote.overridden if wrote.ended.get(i) is TaskState.CANCELLED}
    if awaited is None:
        awaited = bool(wrote.ended) and waits.any_waiting(tx)
    known = not wrote.overridden and all(unbroken.get(i) == END_BIT[state] for i, state in released.items())
    ready += release(tx, released.items(), unbroken=known, awaited=awaited) if released else 0
    if awaited:
        ready += waits.tasks_ended(tx, [i for i in wrote.ended if i not in released])
    if wrote.ended and debug_log.wanted():
        debug_log.released(tx, wrote.ended, ready_children.ids() if ready_children is not None else ())
    if any(ends.publish):
        messages = [o.publish for o in wrote.accepted if o.publish and wrote.ended.get(o.task_id) is TaskState.SUCCESS]
        ready += len(enqueue(tx, messages))
    overridden: dict[int, AttemptEnd] = {}
    if wrote.overridden:
        apply_deferred(tx, wrote.overridden)
        overridden = {o.task_id: o.end for o in wrote.accepted if o.task_id in wrote.overridden}
    return Completion(wrote.ended, wrote.lost, deferred, ready, overridden, ready_children)


def write(
    tx: Tx,
    worker: int,
    outcomes: Sequence[Outcome],
    ends: OutcomeColumns,
    *,
    usual: bool = True,
    before_write: Callable[[], object] | None = None,
    lifetimes: Lifetimes = DEFAULT_LIFETIMES,
) -> CompletionResult:
    """Write the tasks' rows.

    ``ends``: the same outcomes as columns. ``usual``: write the usual successes, too.
    """
    bound = {"worker": worker, "now": tx.now, "result_ttl": lifetimes.result, "kept": lifetimes.key}
    if tx.dialect.name == "sqlite":
        only_successes = ends.states.count(SUCCESS) == len(outcomes)
        if only_successes and _complete_all_common(tx, ends, bound, before_write):
            ended = dict.fromkeys(ends.task_ids, TaskState.SUCCESS)
            return CompletionResult(ended, outcomes, [], [], [], plain=True)
    successes = OutcomeColumns.of([o for o in outcomes if o.state == SUCCESS])
    recorded: Collection[object] = ()
    awaited: bool | None = None
    if tx.dialect.name == "postgresql":
        columns = _success_columns(outcomes, ends) if usual else ()
        recorded, parents, awaited = _succeed_and_record(tx, columns, bound)
        states = dict.fromkeys(recorded, TaskState.SUCCESS)
    else:
        plain = run_across(tx, _COMPLETE_COMMON_RETURNING, _SUCCEED_COLUMNS, _succeeded(successes), None, **bound)
        parents = [row[0] for row in plain if row[3]]
        states = {(row[0], row[1]): TaskState.SUCCESS for row in plain}
    ended = dict.fromkeys([task_id for task_id, _ in states], TaskState.SUCCESS)
    if len(states) == len(outcomes):
        return CompletionResult(ended, outcomes, [], parents, [], recorded, awaited)
    rest = [row for row in zip(*_succeeded(successes), strict=True) if (row[0], row[1]) not in states]
    others = [_other_row(o) for o in outcomes if o.state != SUCCESS]
    overridden: list[int] = []
    written = run_over(tx, _SUCCEED, _SUCCEED_COLUMNS, rest, **bound)
    written += run_over(tx, _OTHER, _OTHER_COLUMNS, others, **bound)
    for task_id, claim, code, has_children in written:
        state = states[task_id, claim] = TaskState.from_code(code)
        if state.terminal:
            ended[task_id] = state
            if has_children:
                parents.append(task_id)
        if state is TaskState.CANCELLED or state is TaskState.SCHEDULED:
            overridden.append(task_id)
    lost = [o for o in outcomes if (o.task_id, o.claim) not in states]
    accepted = [_ended_as(o, states[o.task_id, o.claim]) for o in outcomes if (o.task_id, o.claim) in states]
    return CompletionResult(ended, accepted, lost, parents, overridden, recorded, awaited)


def _succeeded(ends: OutcomeColumns) -> tuple[Sequence[object], ...]:
    """Columns of _SUCCEED_COLUMNS for successes only."""
    results: Sequence[str | None] = ends.results
    if any(results):
        results = [None if result is None or len(result) > INLINE else result for result in results]
    return ends.task_ids, ends.claims, ends.started_at, ends.finished_at, results


def complete_unlocked(
    tx: Tx, worker: int, outcomes: Sequence[Outcome], ends: OutcomeColumns, lifetimes: Lifetimes
) -> tuple[CompletionResult, Sequence[Outcome], Mapping[int, int]]:
    """Write the usual successes. Returns also the other outcomes, and the ends that are known to break no edge."""
    successes = _success_columns(outcomes, ends)
    if not successes:
        return CompletionResult({}, [], [], [], []), outcomes, {}
    given = len(successes[0])
    limits = {"all": given, "patience": _ROW_LOCK_TIMEOUT}
    bound = {"worker": worker, "now": tx.now, "result_ttl": lifetimes.result, **limits}
    try:
        ((some, count, usual),) = run_across(tx, _SUCCEED_UNLOCKED, _RECORDED_COLUMNS, successes, None, **bound)
        recorded = _recorded(successes, some, count)
        ids = tx.dialect.bind_ids([task_id for task_id, _ in recorded])
        # The rows are locked by now: a transaction that adds a child or a wait sees how they ended.
        ((parents, awaited, _),) = tx.rows(_FOLLOWS, ids=ids, usual=usual)
    except sa.exc.DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
            raise RowLocked from error
        raise
    bits = dict.fromkeys(parents, END_BIT[TaskState.SUCCESS])
    below = lock_descendants(tx, bits)
    if below.blocked:
        raise RowLocked
    ended = dict.fromkeys([task_id for task_id, _ in recorded], TaskState.SUCCESS)
    accepted, rest = outcomes, list[Outcome]()
    if len(recorded) < len(outcomes):
        accepted = [o for o in outcomes if (o.task_id, o.claim) in recorded]
        rest = [o for o in outcomes if (o.task_id, o.claim) not in recorded]
    return CompletionResult(ended, accepted, [], parents, [], recorded, awaited), rest, bits if below.unbroken else {}


def _success_columns(outcomes: Sequence[Outcome], ends: OutcomeColumns) -> tuple[Sequence[Any], ...]:
    """The successes by _RECORDED_COLUMNS; empty if there is none."""
    if not ends.plain:
        ends = OutcomeColumns.of([o for o in outcomes if o.state == SUCCESS])
    if not ends.task_ids:
        return ()
    return *_succeeded(ends), ends.numbers, ends.claimed_at, [end.code for end in ends.ends]


def _recorded(
    successes: tuple[Sequence[Any], ...], some: Iterable[Sequence[int]] | None, count: int
) -> set[tuple[int, int]]:
    """(task id, claim) of those written: all that were given, if so many were."""
    if count == len(successes[0]):
        return set(zip(successes[0], successes[1], strict=True))
    return {(task_id, claim) for task_id, claim in some or ()}


def _succeed_and_record(
    tx: Tx, successes: tuple[Sequence[Any], ...], bound: Mapping[str, object]
) -> tuple[set[tuple[int, int]], list[int], bool | None]:
    """PostgreSQL: write the usual successes, which are locked, with their attempts' records.

    Returns (task id, claim) written, which of them have children, and whether a task awaits an end.
    """
    if not successes:
        return set(), [], None
    ((some, count, parents, awaited),) = run_across(
        tx, _SUCCEED_LOCKED, _RECORDED_COLUMNS, successes, None, **bound, all=len(successes[0])
    )
    return _recorded(successes, some, count), parents or [], awaited


def _complete_all_common(
    tx: Tx, ends: OutcomeColumns, bound: Mapping[str, object], before_write: Callable[[], object] | None
) -> bool:
    """Write the outcomes if all are successes whose fence holds. Returns whether it did.

    RETURNING is slow on SQLite, so this counts the rows, and rolls back to a savepoint if one is missing.
    """
    tx.rows("SAVEPOINT schedd_plain")
    if before_write is not None:
        before_write()
    # Binding a NULL is slow in SQLite's driver: it searches for an adapter.
    columns, result = (_SUCCEED_COLUMNS, "j.result") if any(ends.results) else (_SUCCEED_COLUMNS[:-1], "NULL")
    values = _succeeded(ends)[: len(columns)]
    sql = _COMPLETE_COMMON.replace("{result}", result)
    changed = change_across(tx, sql, columns, values, [0] * len(columns), **bound)
    usual = changed == len(ends.task_ids)
    if not usual:
        tx.rows("ROLLBACK TO schedd_plain")
    tx.rows("RELEASE schedd_plain")
    return usual


def _ended_as(o: Outcome, state: TaskState) -> Outcome:
    """The outcome that the history records if a cancel or a replacement decided the task's end."""
    if state is TaskState.CANCELLED:
        return o._replace(end=AttemptEnd.CANCELLED, result=None)
    if state is not TaskState.SCHEDULED or o.state == SCHEDULED:
        return o
    # A failed attempt was not retried and not the last one; the task runs again as something else.
    failed = o.state in (RETRY, SUSPENDED, FAILED, DEAD)
    return o._replace(end=AttemptEnd.REPLACED if failed else o.end, result=None)


def _other_row(o: Outcome) -> tuple[object, ...]:
    f = o.failure
    # A handler that ended did not kill its worker; one that never ran proves nothing.
    suspect = 1 if o.started_at is None else 0
    return (
        o.task_id,
        o.claim,
        o.state,
        o.run_at,
        o.refund,
        o.started_at,
        o.finished_at,
        f.text if f else None,
        f.error_class if f else None,
        f.fingerprint if f else None,
        f.status if f else None,
        suspect,
    )
