"""Bulks as they are stored: a frozen scope, how far it is done, who runs it; and what became of each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.errors import ConfigError, InvalidTransitionError, UnknownBulkError
from scheduler.model.actor import Actor, actor
from scheduler.model.bulk import WITH_CANARY, BulkOptions, BulkState, ItemResult
from scheduler.model.state import TaskState
from scheduler.ports import SECOND
from scheduler.store import audit
from scheduler.store.db.dialect import DIALECTS, bind_rows
from scheduler.store.db.tx import Tx

if TYPE_CHECKING:
    import sqlalchemy as sa

RUNNER_US = 60 * SECOND  # for so long a bulk is its runner's, from each of its transactions on
_INSERTED = 10_000  # items that one statement stores
_COLUMNS = (
    *("name", "verb", "state", "created_at", "updated_at", "finished_at", "actor", "via", "reason", "options"),
    *("chosen", "plan", "total", "position", "done", "passed", "failed", "dependants", "runner", "runner_until"),
    "undoes",
)
_ROW = f"SELECT {', '.join(f't.{name}' for name in _COLUMNS)} FROM schedd_bulks t"


class BulkRecord(NamedTuple):
    """A stored bulk, see :class:`scheduler.client.bulks.BulkInfo`. Instants are microseconds.

    ``position``: how many were looked at. ``runner``: the process that runs it, until ``runner_until``.
    """

    name: str
    verb: str
    state: BulkState
    created_at: int
    updated_at: int
    finished_at: int | None
    actor: str | None
    via: str
    reason: str | None
    options: BulkOptions
    chosen: dict[str, Any]
    plan: dict[str, Any]
    total: int
    position: int
    done: int
    passed: int
    failed: int
    dependants: int
    runner: str | None
    runner_until: int | None
    undoes: str | None

    @property
    def who(self) -> Actor:
        """In whose name its changes are made."""
        return Actor(self.actor, self.via, self.reason, self.name, self.chosen)

    def shown_state(self, now: int) -> BulkState:
        """Its state for people: one that is to run, and that nothing has run for a while, is interrupted."""
        return BulkState.INTERRUPTED if self.idle(now) else self.state

    def idle(self, now: int) -> bool:
        """Whether its process has died, or nobody has taken it since it was started."""
        return self.state is BulkState.RUNNING and (self.runner_until is None or self.runner_until <= now)

    @property
    def rate(self) -> float | None:
        """Tasks a second since it was last started or gone on with; None: none was looked at since."""
        began, ended = self.options.began_at, self.updated_at
        looked = self.position - self.options.began_from
        return None if began is None or ended <= began or looked <= 0 else looked * SECOND / (ended - began)


class BulkItem(NamedTuple):
    """One task of a scope. ``before``: its state before the change; ``result`` None: not looked at yet."""

    position: int
    task_id: int
    before: TaskState | None
    result: ItemResult | None
    note: str | None


def _record(row: sa.Row[Any]) -> BulkRecord:
    given = dict(row._mapping)
    given["state"] = BulkState.from_code(row.state)
    given["options"] = msgspec.convert(msgspec.json.decode(row.options), BulkOptions)
    given["chosen"], given["plan"] = msgspec.json.decode(row.chosen), msgspec.json.decode(row.plan)
    return BulkRecord(**given)


def insert(
    tx: Tx,
    verb: str,
    ids: Sequence[int],
    *,
    options: BulkOptions = BulkOptions(),  # noqa: B008  # immutable
    chosen: Mapping[str, Any] = {},  # not changed
    plan: Mapping[str, Any] = {},
    undoes: str | None = None,
) -> str:
    """Store a bulk that is planned, in the name of the acting actor; returns its name. ``ids``: in this order."""
    name, who = audit.new_bulk(), actor()
    tx.run(
        f"INSERT INTO schedd_bulks ({', '.join(_COLUMNS)}) VALUES (:name, :verb, {BulkState.PLANNED.code}, :now, :now, "
        "NULL, :actor, :via, :reason, :options, :chosen, :plan, :total, 0, 0, 0, 0, 0, NULL, NULL, :undoes)",
        name=name,
        verb=verb,
        now=tx.now,
        actor=audit.user() if who.name is None else who.name,
        via=who.via,
        reason=who.reason,
        options=msgspec.json.encode(options).decode(),
        chosen=msgspec.json.encode(dict(chosen)).decode(),
        plan=msgspec.json.encode(dict(plan)).decode(),
        total=len(ids),
        undoes=undoes,
    )
    for at in range(0, len(ids), _INSERTED):
        tx.rows(
            "INSERT INTO schedd_bulk_items (bulk, position, task_id) SELECT CAST(:bulk AS text), position, task_id "
            f"FROM {tx.dialect.rows({'position': int, 'task_id': int})} j",
            rows=bind_rows(list(enumerate(map(int, ids[at : at + _INSERTED]), at))),
            bulk=name,
        )
    return name


def get(tx: Tx, name: str, lock: str = "") -> BulkRecord:
    """One bulk. ``lock``: SQL for the SELECT. Raises UnknownBulkError."""
    row = tx.run(f"{_ROW} WHERE t.name = :name {lock}", name=name).first()
    if row is None:
        raise UnknownBulkError(name)
    return _record(row)


def newest(tx: Tx, limit: int = 50) -> list[BulkRecord]:
    return [_record(row) for row in tx.run(f"{_ROW} ORDER BY t.created_at DESC, t.name LIMIT :limit", limit=limit)]


def handed_over(tx: Tx, runner: str) -> list[str]:
    """The bulks that a person has just started and nothing runs yet, and those of this runner; the oldest first.

    None that was interrupted: whether that goes on is for a person to say.
    """
    rows = tx.run(
        f"SELECT name FROM schedd_bulks WHERE state = {BulkState.RUNNING.code} "
        "AND (runner IS NULL OR runner = :runner) AND runner_until > :now ORDER BY created_at, name",
        runner=runner,
        now=tx.now,
    )
    return [row[0] for row in rows]


def items(
    tx: Tx, name: str, *, result: ItemResult | None = None, limit: int = 100, cursor: int = -1
) -> tuple[list[BulkItem], int | None]:
    """Up to ``limit`` tasks of a bulk behind position ``cursor``, and the cursor of the next ones.

    ``result``: only those that came to this.
    """
    where = "" if result is None else f"AND result = {result.code} "
    rows = tx.run(
        "SELECT position, task_id, before, result, note FROM schedd_bulk_items WHERE bulk = :bulk "
        f"AND position > :cursor {where}ORDER BY position LIMIT :limit",
        bulk=name,
        cursor=cursor,
        limit=limit + 1,
    ).fetchall()
    found = [
        BulkItem(
            row[0],
            row[1],
            None if row[2] is None else TaskState.from_code(row[2]),
            None if row[3] is None else ItemResult.from_code(row[3]),
            row[4],
        )
        for row in rows[:limit]
    ]
    return found, found[-1].position if len(rows) > limit else None


def write(
    tx: Tx, bulk: BulkRecord, results: Sequence[tuple[int, int | None, ItemResult, str | None]], dependants: int
) -> BulkRecord:
    """Record what became of the next items, rows (position, state before, result, note), and that we run it."""
    tx.run(
        "UPDATE schedd_bulk_items SET before = j.before, result = j.result, note = j.note "
        f"FROM {tx.dialect.rows({'position': int, 'before': int, 'result': int, 'note': str})} j "
        "WHERE schedd_bulk_items.bulk = :bulk AND schedd_bulk_items.position = j.position "
        "AND schedd_bulk_items.position >= :first AND schedd_bulk_items.position <= :last",  # not all of the scope
        rows=bind_rows([(position, before, result.code, note) for position, before, result, note in results]),
        bulk=bulk.name,
        first=min((row[0] for row in results), default=0),
        last=max((row[0] for row in results), default=0),
    )
    counts = {one: sum(result is one for _, _, result, _ in results) for one in ItemResult}
    position = bulk.position + len(results)
    over = position >= bulk.total
    changed = bulk._replace(
        state=BulkState.DONE if over else bulk.state,
        updated_at=tx.now,
        finished_at=tx.now if over else None,
        position=position,
        done=bulk.done + counts[ItemResult.DONE],
        passed=bulk.passed + counts[ItemResult.PASSED],
        failed=bulk.failed + counts[ItemResult.FAILED],
        dependants=bulk.dependants + dependants,
        runner=None if over else bulk.runner,
        runner_until=None if over else tx.now + RUNNER_US,
    )
    _save(tx, changed)
    return changed


def _save(tx: Tx, bulk: BulkRecord) -> None:
    tx.run(
        "UPDATE schedd_bulks SET state = :state, updated_at = :updated_at, finished_at = :finished_at, "
        "position = :position, done = :done, passed = :passed, failed = :failed, dependants = :dependants, "
        "runner = :runner, runner_until = :runner_until WHERE name = :name",
        **{**bulk._asdict(), "state": bulk.state.code, "options": "", "chosen": "", "plan": ""},
    )


def start(tx: Tx, name: str, *, canary: bool = False, rate: float | None = None) -> BulkRecord:
    """Let a planned bulk be run, or go on with one that was stopped or interrupted. Does nothing for one that runs.

    Who goes on with a bulk does so in their own name. ``canary``: one task first, the rest if that one succeeds;
    ``rate``: tasks a second at most, None: as it was. Raises UnknownBulkError; InvalidTransitionError if it is done or
    undone; ConfigError if its verb runs no task.
    """
    bulk = get(tx, name, tx.dialect.lock)
    state = bulk.shown_state(tx.now)
    if state is BulkState.RUNNING:
        return bulk
    if state in (BulkState.DONE, BulkState.UNDONE):
        raise InvalidTransitionError(f"bulk {name} is {state}; make another one")
    if canary and bulk.verb not in WITH_CANARY:
        raise ConfigError(f"a {bulk.verb} runs no task, so that none can go first")
    options = bulk.options._replace(
        canary=canary,
        rate=bulk.options.rate if rate is None else rate,
        began_at=tx.now,
        began_from=bulk.position,
    )
    bulk = bulk._replace(options=options)
    if bulk.position:
        who = actor()
        named = audit.user() if who.name is None else who.name
        bulk = bulk._replace(actor=named, via=who.via, reason=bulk.reason if who.reason is None else who.reason)
    tx.run(
        "UPDATE schedd_bulks SET options = :options, actor = :actor, via = :via, reason = :reason WHERE name = :name",
        options=msgspec.json.encode(options).decode(),
        actor=bulk.actor,
        via=bulk.via,
        reason=bulk.reason,
        name=name,
    )
    changed = bulk._replace(state=BulkState.RUNNING, updated_at=tx.now, runner=None, runner_until=tx.now + RUNNER_US)
    _save(tx, changed)
    numbers = {"verb": bulk.verb, "tasks": bulk.total, "looked_at": bulk.position, "filter": bulk.chosen}
    action = "bulk continued" if bulk.position else "bulk started"
    audit.record(tx, action, subject=f"bulk {name}", before=state.value, after=numbers)
    return changed


def stop(tx: Tx, name: str) -> BulkRecord:
    """Let a bulk stop after its present transaction; :func:`start` goes on with it.

    Raises UnknownBulkError, InvalidTransitionError if it is done or undone.
    """
    bulk = get(tx, name, tx.dialect.lock)
    if bulk.state is BulkState.STOPPED:
        return bulk
    if bulk.state in (BulkState.DONE, BulkState.UNDONE):
        raise InvalidTransitionError(f"bulk {name} is {bulk.state}; it cannot be stopped")
    changed = bulk._replace(state=BulkState.STOPPED, updated_at=tx.now, runner=None, runner_until=None)
    _save(tx, changed)
    _record_stop(tx, bulk)
    return changed


def done_before(tx: Tx, name: str, states: Sequence[TaskState]) -> list[int]:
    """The tasks that a bulk has changed and that were in one of these states before, by id."""
    codes = ", ".join(str(state.code) for state in states)
    rows = tx.run(
        "SELECT task_id FROM schedd_bulk_items WHERE bulk = :name "
        f"AND result = {ItemResult.DONE.code} AND before IN ({codes}) ORDER BY task_id",
        name=name,
    )
    return [row[0] for row in rows]


def end_undone(tx: Tx, bulk: BulkRecord) -> None:
    """End a bulk that the caller has locked and takes back: it never goes on."""
    if bulk.state not in (BulkState.RUNNING, BulkState.STOPPED):
        return
    changed = bulk._replace(
        state=BulkState.UNDONE, updated_at=tx.now, finished_at=tx.now, runner=None, runner_until=None
    )
    _save(tx, changed)
    numbers = {"looked_at": bulk.position, "tasks": bulk.total, "done": bulk.done}
    audit.record(tx, "bulk undone", subject=f"bulk {bulk.name}", after=numbers)


def leave(tx: Tx, name: str, runner: str) -> None:
    """Leave a bulk as it is, interrupted: a person may go on with it at once."""
    tx.run(
        "UPDATE schedd_bulks SET runner_until = :now WHERE name = :name AND runner = :runner",
        name=name,
        runner=runner,
        now=tx.now,
    )


def _record_stop(tx: Tx, bulk: BulkRecord, **more: Any) -> None:
    numbers = {"looked_at": bulk.position, "tasks": bulk.total, "done": bulk.done}
    audit.record(tx, "bulk stopped", subject=f"bulk {bulk.name}", after=numbers | more)


def stop_after_canary(
    tx: Tx, bulk: BulkRecord, task_id: int, end: TaskState | None, hindered: str | None = None
) -> BulkRecord:
    """Stop a bulk that the caller has locked, as its first task did not succeed, or is ``hindered`` from running."""
    changed = bulk._replace(state=BulkState.STOPPED, updated_at=tx.now, runner=None, runner_until=None)
    _save(tx, changed)
    why = {"waits": hindered} if end is None else {"ended": end.value}
    _record_stop(tx, bulk, canary=task_id, **why)
    return changed


def keep(tx: Tx, bulk: BulkRecord) -> BulkRecord:
    """Remain the runner of a bulk that the caller has locked, without a change."""
    changed = bulk._replace(runner_until=tx.now + RUNNER_US)
    _save(tx, changed)
    return changed


def take(tx: Tx, name: str, runner: str) -> BulkRecord:
    """Lock a bulk for its next transaction, in the name of this runner.

    One that is not to be run comes back as it is. Raises UnknownBulkError; InvalidTransitionError if another one runs
    it.
    """
    bulk = get(tx, name, tx.dialect.lock)
    if bulk.state is not BulkState.RUNNING:
        return bulk
    if bulk.runner not in (None, runner):
        why = "was interrupted: start it again" if bulk.idle(tx.now) else "is run by another process"
        raise InvalidTransitionError(f"bulk {name} {why}")
    return bulk._replace(runner=runner)


_OLD = {
    name: "SELECT t.name FROM schedd_bulks t WHERE t.created_at < :before AND t.updated_at < :before "
    f"AND (t.state <> {BulkState.RUNNING.code} OR coalesce(t.runner_until, 0) <= :before) "
    f"ORDER BY t.created_at LIMIT :batch {dialect.skip_locked}"
    for name, dialect in DIALECTS.items()
}


def clean(tx: Tx, before: int, batch: int) -> int:
    """Remove up to ``batch`` bulks that were last changed before this instant, and do not run. Returns how many."""
    rows = tx.rows(_OLD[tx.dialect.name], before=before, batch=batch)
    for (name,) in rows:
        tx.run("DELETE FROM schedd_bulk_items WHERE bulk = :name", name=name)
        tx.run("DELETE FROM schedd_bulks WHERE name = :name", name=name)
    return len(rows)
