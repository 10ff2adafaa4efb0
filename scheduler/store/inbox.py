"""The inbox: each message of a source becomes a task once, however often it is delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scheduler.model import inbox
from scheduler.model.inbox import InboxState
from scheduler.model.spec import TaskSpec
from scheduler.model.state import SCHEDULED, SUSPENDED, TaskState
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.inbox_order import Ordering, SubjectOrder, place
from scheduler.store.tasks.enqueue import enqueue

PURGED_AT_ONCE = 1000  # rows
_ROW = {
    "message_key": str,
    "message_id": str,
    "verdict": int,
    "error": str,
    "receipt": str,
    "subject": str,
    "sequence": int,
}
_NAMES = ", ".join(_ROW)
_OPEN = "ix_schedd_inbox_open"
_AGAIN = {"message_key": str, "message_id": str, "receipt": str, "error": str}
_MADE = {"message_key": str, "task_id": int, "verdict": int, "receipt": str, "error": str}
_Made = tuple[str, int, int, str | None, str | None]  # key, task, verdict, receipt, error


class Arrival(NamedTuple):
    """One message of a batch. ``error``: why it can become no task; ``spec`` is then one that stands for it.

    ``receipt``: what settles it, if its task's end does; else None.
    """

    key: str
    message_id: str
    spec: TaskSpec | None
    error: str | None = None
    receipt: str | None = None
    subject: str | None = None
    sequence: int | None = None


class InboxEntry(NamedTuple):
    """What became of one message. ``again``: it had come before. ``state``, ``run_at``: of its task, if it has one.

    ``verdict`` None: it was not stored, since messages before it are missing, and is to come again.
    """

    key: str
    verdict: InboxState | None
    task_id: int | None = None
    again: bool = False
    state: TaskState | None = None
    run_at: int | None = None


class InboxRules(NamedTuple):
    """How a source stores messages: for how long it remembers them (microseconds), and in which order they run."""

    keep: int
    holder: str | None = None
    ordering: Ordering | None = None


def store(tx: Tx, source: str, arrivals: Sequence[Arrival], rules: InboxRules) -> list[InboxEntry]:
    """Store a batch: a row for each message, and a task for each new one. One entry for each arrival, in their order.

    The transaction is the store's own. Two receivers that store the same message wait for each other.
    """
    first: dict[str, Arrival] = {}
    for arrival in arrivals:
        first.setdefault(arrival.key, arrival)
    places = [] if rules.ordering is None else _subjects(tx, source, first.values(), rules.ordering)
    new = _insert(tx, source, first, rules)
    known = _note(tx, source, [a for key, a in first.items() if key not in new], rules)
    fresh = [first[key] for key in first if key in new]
    for key, entry in known.items():
        if entry.verdict is InboxState.DEAD and first[key].error is None:  # replayed: it can be read by now
            fresh.append(first[key])
    entries = make_tasks(tx, source, fresh, places, rules)
    entries = {key: known[key] for key in known if key not in entries} | entries
    seen: set[str] = set()
    found: list[InboxEntry] = []
    for arrival in arrivals:
        entry = entries[arrival.key]
        found.append(entry if arrival.key not in seen else entry._replace(again=True))
        seen.add(arrival.key)
    return found


def _subjects(tx: Tx, source: str, arrivals: Iterable[Arrival], ordering: Ordering) -> list[SubjectOrder]:
    """The places of the batch's subjects, locked until the transaction ends."""
    names = {a.subject for a in arrivals if a.spec is not None and a.subject is not None and a.sequence is not None}
    return place(tx, source, sorted(names), ordering)


def _insert(tx: Tx, source: str, arrivals: dict[str, Arrival], rules: InboxRules) -> set[str]:
    """Insert rows; returns the keys that are new. In the order of their keys, so that no two batches deadlock."""
    rows = [
        (a.key, a.message_id, _verdict_of(a), a.error, a.receipt, a.subject, a.sequence)
        for a in sorted(arrivals.values(), key=lambda a: a.key)
    ]
    made = tx.run(
        f"INSERT INTO schedd_inbox (source, {_NAMES}, holder, first_at, last_at, expires_at) "
        f"SELECT CAST(:source AS text), {_NAMES}, CASE WHEN receipt IS NOT NULL THEN CAST(:holder AS text) END, "
        f"CAST(:now AS bigint), CAST(:now AS bigint), CAST(:until AS bigint) FROM {tx.dialect.rows(_ROW)} j "
        "WHERE true ON CONFLICT (source, message_key) DO NOTHING RETURNING message_key",
        rows=bind_rows(rows),
        source=source,
        holder=rules.holder,
        now=tx.now,
        until=tx.now + rules.keep,
    )
    return {row.message_key for row in made}


def _verdict_of(arrival: Arrival) -> int:
    if arrival.error is not None or arrival.spec is None:
        return inbox.DEAD
    return inbox.DONE if arrival.receipt is None else inbox.OPEN


def _note(tx: Tx, source: str, arrivals: Sequence[Arrival], rules: InboxRules) -> dict[str, InboxEntry]:
    """Count another delivery of messages that have come before. An open one is settled by its last receipt."""
    if not arrivals:
        return {}
    rows = sorted((a.key, a.message_id, a.receipt, a.error) for a in arrivals)
    updated = tx.run(
        f"{_with(tx, _AGAIN)} UPDATE schedd_inbox SET deliveries = deliveries + 1, last_at = :now, "
        "message_id = j.message_id, expires_at = CASE WHEN expires_at > :until THEN expires_at ELSE :until END, "
        f"error = CASE WHEN verdict = {inbox.DEAD} THEN coalesce(j.error, schedd_inbox.error) "
        "ELSE schedd_inbox.error END, "
        f"receipt = CASE WHEN verdict = {inbox.OPEN} THEN j.receipt END, "
        f"holder = CASE WHEN verdict = {inbox.OPEN} AND j.receipt IS NOT NULL THEN CAST(:holder AS text) END "
        "FROM j WHERE schedd_inbox.source = :source AND schedd_inbox.message_key = j.message_key "
        "RETURNING schedd_inbox.message_key, verdict, task_id",
        rows=bind_rows(rows),
        source=source,
        holder=rules.holder,
        now=tx.now,
        until=tx.now + rules.keep,
    ).all()
    found_ends = ends(tx, [row.task_id for row in updated if row.task_id is not None])
    found = {}
    for row in updated:
        state, run_at = found_ends.get(row.task_id, (None, None))
        found[row.message_key] = InboxEntry(
            row.message_key, InboxState.from_code(row.verdict), row.task_id, True, state, run_at
        )
    return found


def message_ids(tx: Tx, source: str, keys: Sequence[str]) -> dict[str, str]:
    """The transport's ids of messages that have come, by their keys."""
    rows = tx.run(
        f"{_with(tx, {'message_key': str})} SELECT i.message_key, i.message_id FROM j JOIN schedd_inbox i "
        "ON i.source = :source AND i.message_key = j.message_key",
        rows=bind_rows([(key,) for key in keys]),
        source=source,
    )
    return {row.message_key: row.message_id for row in rows}


def _with(tx: Tx, columns: Mapping[str, type]) -> str:
    """The bound rows as ``j``; if it were not materialized, SQLite would read all messages of the source."""
    return f"WITH j AS MATERIALIZED (SELECT * FROM {tx.dialect.rows(columns)} q)"


def ends(tx: Tx, ids: Sequence[int]) -> dict[int, tuple[TaskState | None, int | None]]:
    """The states of tasks, and when they are due; of a removed one only how it ended."""
    if not ids:
        return {}
    found: dict[int, tuple[TaskState | None, int | None]] = {
        row.id: (TaskState.from_code(row.state), row.run_at)
        for row in tx.run(
            f"SELECT t.id, t.state, t.run_at FROM schedd_tasks t WHERE t.id IN {tx.dialect.ids()}", ids=bind_rows(ids)
        )
    }
    gone = [task_id for task_id in ids if task_id not in found]
    if gone:
        for row in tx.run(
            f"SELECT task_id, state FROM schedd_outcomes WHERE task_id IN {tx.dialect.ids()}", ids=bind_rows(gone)
        ):
            found[row.task_id] = (TaskState.from_code(row.state), None)
        found |= {task_id: (TaskState.SKIPPED, None) for task_id in gone if task_id not in found}
    return found


def make_tasks(
    tx: Tx, source: str, arrivals: Sequence[Arrival], places: Sequence[SubjectOrder], rules: InboxRules
) -> dict[str, InboxEntry]:
    """Store the tasks of new messages, and what their coming lets go; returns entries by key."""
    by_subject = {one.subject: one for one in places}
    entries: dict[str, InboxEntry] = {}
    wanted: list[tuple[str, TaskSpec]] = []
    for arrival in sorted(arrivals, key=lambda a: a.sequence or 0):
        if arrival.spec is None:
            entries[arrival.key] = InboxEntry(arrival.key, InboxState.DEAD)
            continue
        at = by_subject.get(arrival.subject or "")
        if at is None or arrival.sequence is None:
            wanted.append((arrival.key, arrival.spec))
        else:
            at.take(arrival.key, arrival.sequence, arrival.spec)
    for one in places:
        for verdict, key in one.kept_out:
            entries[key] = InboxEntry(key, verdict)
        wanted += one.chained(len(wanted))
    ids = enqueue(tx, [spec for _, spec in wanted])
    ended = ends(tx, [int(task_id) for task_id in ids if not task_id.created])
    made: list[_Made] = []
    by_key = {a.key: a for a in arrivals}  # without those that were held until now
    for (key, _), task_id in zip(wanted, ids, strict=True):
        verdict = InboxState.from_code(_verdict_of(by_key[key])) if key in by_key else InboxState.DONE
        state, run_at = ended.get(int(task_id), (None, None))
        entries[key] = InboxEntry(key, verdict, int(task_id), not task_id.created, state, run_at)
        receipt, error = (by_key[key].receipt, by_key[key].error) if key in by_key else (None, None)
        made.append((key, int(task_id), verdict.code, receipt, error))
    if made:
        _set_tasks(tx, source, made, rules.holder)
    for one in places:
        one.save(tx, {key: int(task_id) for (key, _), task_id in zip(wanted, ids, strict=True)})
    return entries


def _set_tasks(tx: Tx, source: str, made: list[_Made], holder: str | None) -> None:
    tx.run(
        f"{_with(tx, _MADE)} UPDATE schedd_inbox SET task_id = j.task_id, held = NULL, error = j.error, "
        "verdict = j.verdict, receipt = j.receipt, "
        "holder = CASE WHEN j.receipt IS NOT NULL THEN CAST(:holder AS text) END FROM j "
        "WHERE schedd_inbox.source = :source AND schedd_inbox.message_key = j.message_key",
        rows=bind_rows(sorted(made, key=lambda row: row[0])),
        source=source,
        holder=holder,
    )


class Open(NamedTuple):
    """A message that its task's end settles. ``state``: of the task; ``run_at``: when that is due."""

    key: str
    receipt: str
    state: TaskState
    run_at: int | None


def open_messages(tx: Tx, source: str, holder: str) -> list[Open]:
    """The messages whose receipts this receiver has."""
    rows = tx.run(
        "SELECT i.message_key, i.receipt, i.task_id FROM schedd_inbox i "
        f"{tx.dialect.by_index(_OPEN)} WHERE i.source = :source AND i.holder = :holder AND i.receipt IS NOT NULL "
        "ORDER BY i.message_key",
        source=source,
        holder=holder,
    ).all()
    found_ends = ends(tx, [row.task_id for row in rows if row.task_id is not None])
    found = []
    for row in rows:
        state, run_at = found_ends.get(row.task_id, (None, None))
        found.append(Open(row.message_key, row.receipt, TaskState.WAITING if state is None else state, run_at))
    return found


def settled(tx: Tx, source: str, holder: str, receipts: Sequence[str], *, done: bool) -> None:
    """The transport has taken a holder's verdicts on these. Not ``done``: the message comes again, with another one."""
    tx.run(
        f"{_with(tx, {'receipt': str})} UPDATE schedd_inbox {tx.dialect.by_index(_OPEN)} "
        "SET receipt = NULL, holder = NULL, verdict = CASE WHEN CAST(:done AS integer) = 1 "
        f"AND verdict = {inbox.OPEN} THEN {inbox.DONE} ELSE verdict END "
        "FROM j WHERE schedd_inbox.source = :source AND schedd_inbox.holder = :holder "
        "AND schedd_inbox.receipt IS NOT NULL AND schedd_inbox.receipt = j.receipt",
        rows=bind_rows([(receipt,) for receipt in sorted(receipts)]),
        source=source,
        holder=holder,
        done=int(done),
    )


def backlog(tx: Tx, queues: Sequence[str], most: int) -> int:
    """How many tasks of these queues are due and wait for a worker; counts up to ``most``."""
    total = 0
    for queue in queues:
        total += tx.run(
            "SELECT count(*) FROM (SELECT 1 FROM schedd_tasks t WHERE t.queue = :queue "
            f"AND t.state >= {SCHEDULED} AND t.state <= {SUSPENDED} AND t.run_at <= :now LIMIT :most) q",
            queue=queue,
            now=tx.now,
            most=most,
        ).scalar_one()
    return total


def purge(tx: Tx) -> bool:
    """Forget messages whose time is over, up to PURGED_AT_ONCE; returns whether there may be more."""
    gone = tx.run(
        "DELETE FROM schedd_inbox WHERE (source, message_key) IN (SELECT i.source, i.message_key FROM schedd_inbox i "
        "WHERE i.expires_at <= :now AND i.receipt IS NULL AND i.held IS NULL ORDER BY i.expires_at LIMIT :most)",
        now=tx.now,
        most=PURGED_AT_ONCE,
    ).rowcount
    return gone == PURGED_AT_ONCE


class InboxRecord(NamedTuple):
    """One message of the inbox, as people read it. Times are microseconds."""

    source: str
    key: str
    message_id: str
    task_id: int | None
    deliveries: int
    first_at: int
    last_at: int
    state: InboxState
    error: str | None
    subject: str | None
    sequence: int | None
    expires_at: int


def inbox_records(
    tx: Tx,
    *,
    source: str | None = None,
    state: InboxState | None = None,
    key: str | None = None,
    task_id: int | None = None,
    limit: int = 100,
) -> list[InboxRecord]:
    """Messages, those that came last first."""
    given = {"source": source, "verdict": None if state is None else state.code, "message_key": key, "task_id": task_id}
    bound = {name: value for name, value in given.items() if value is not None}
    where = " AND ".join(f"i.{name} = :{name}" for name in bound) or "true"
    # Of one source the order of expiry is that of coming, and an index has it.
    order = "i.expires_at DESC, i.last_at DESC" if list(bound) == ["source"] else "i.last_at DESC"
    rows = tx.run(
        "SELECT i.source, i.message_key, i.message_id, i.task_id, i.deliveries, i.first_at, i.last_at, i.verdict, "
        f"i.error, i.subject, i.sequence, i.expires_at FROM schedd_inbox i WHERE {where} "
        f"ORDER BY {order}, i.source, i.message_key LIMIT :limit",
        **bound,
        limit=limit,
    )
    return [InboxRecord._make([*row[:7], InboxState.from_code(row[7]), *row[8:]]) for row in rows]


def source_names(tx: Tx, most: int = 1000) -> list[str]:
    """The sources that messages have come from, each found by one step in an index."""
    found: list[str] = []
    while len(found) < most:
        row = tx.run(
            "SELECT source FROM schedd_inbox WHERE source > :last ORDER BY source LIMIT 1",
            last=found[-1] if found else "",
        ).first()
        if row is None:
            break
        found.append(row.source)
    return found
