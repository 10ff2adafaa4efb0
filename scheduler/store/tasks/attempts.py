"""The history of attempts, and values too long for a task's row."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from scheduler.model.outcome import AttemptEnd, Outcome, OutcomeColumns
from scheduler.store.db.dialect import bind_rows, fence
from scheduler.store.db.statements import Columns, run_across, run_over
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import IS_HELD

INLINE = 1024  # longer values go to schedd_task_values, so that claim and finish do not rewrite them
_PLAIN_COLUMNS: Columns = (  # of an attempt without an error: each column bound costs
    ("task_id", int),
    ("claim", int),
    ("number", int),
    ("claimed_at", int),
    ("started_at", int),
    ("finished_at", int),
    ("outcome", int),
)
_FAILED_COLUMNS: Columns = (
    *_PLAIN_COLUMNS,
    ("error", str),
    ("error_class", str),
    ("fingerprint", str),
    ("status_code", int),
)


def _insert_attempts(columns: Columns) -> str:
    names = ", ".join(name for name, _ in columns)
    return (
        f"WITH {{rows}} INSERT INTO schedd_attempts (worker, {names}) SELECT :worker, {names} FROM j WHERE task_id > 0"
    )


_RECORD_PLAIN = _insert_attempts(_PLAIN_COLUMNS)
_RECORD_FAILED = _insert_attempts(_FAILED_COLUMNS)
_SUCCEEDED = AttemptEnd.SUCCEEDED.code


def record(
    tx: Tx, worker: int, outcomes: Sequence[Outcome], ends: OutcomeColumns, recorded: Collection[object]
) -> None:
    """Insert the ends of these attempts.

    ``ends``: the outcomes as columns. ``recorded``: (task id, claim) of attempts that are recorded already.
    """
    if len(recorded) == len(outcomes):
        return
    if ends.plain and not recorded:
        rest = (ends.claimed_at, ends.started_at, ends.finished_at, [_SUCCEEDED] * len(outcomes))
        whole = (ends.task_ids, ends.claims, ends.numbers, *rest)
        run_across(tx, _RECORD_PLAIN, _PLAIN_COLUMNS, whole, [0] * len(_PLAIN_COLUMNS), worker=worker)
        return
    plain: list[tuple[object, ...]] = []
    failed: list[tuple[object, ...]] = []
    for task_id, claim, number, end, _, claimed, started, finished, _, failure, *_ in outcomes:
        if started is None or (task_id, claim) in recorded:
            continue
        if failure is None:
            code = _SUCCEEDED if end is AttemptEnd.SUCCEEDED else end.code
            plain.append((task_id, claim, number, claimed, started, finished, code))
        else:
            failed.append((task_id, claim, number, claimed, started, finished, end.code, *failure))
    run_over(tx, _RECORD_PLAIN, _PLAIN_COLUMNS, plain, worker=worker)
    run_over(tx, _RECORD_FAILED, _FAILED_COLUMNS, failed, worker=worker)


def recorded(tx: Tx, claims: Collection[tuple[int, int]]) -> dict[tuple[int, int], AttemptEnd]:
    """The recorded ends of these claims, by (task id, claim)."""
    rows = tx.run(
        f"SELECT a.task_id, a.claim, a.outcome FROM {tx.dialect.rows({'id': int, 'claim': int})} j "
        "JOIN schedd_attempts a ON a.task_id = j.id AND a.claim = j.claim",
        rows=bind_rows(list(claims)),
    )
    return {(row[0], row[1]): AttemptEnd.from_code(row[2]) for row in rows}


def keep_long(tx: Tx, outcomes: Sequence[Outcome]) -> None:
    """Store the attempts' logs, and results that are too long for a row."""
    values: list[tuple[int, str, str]] = []
    for o in outcomes:
        if o.result is not None and len(o.result) > INLINE:
            values.append((o.task_id, "result", o.result))
        if o.log:
            values.append((o.task_id, f"log:{o.claim}", o.log))
    if values:
        write_values(tx, values)


def stack_name(claim: int) -> str:
    """The name of the side value with the stack of this claim's hung handler."""
    return f"stack:{claim}"


class AttemptStanding(msgspec.Struct, frozen=True):
    """Where an attempt has stood since ``since`` (microseconds): ``file:line function``, and the whole stack."""

    since: int
    where: str
    stack: str


def standing_name(claim: int) -> str:
    """The name of the side value that says where this claim's attempt stands."""
    return f"standing:{claim}"


def write_standing(tx: Tx, worker: int, rows: Sequence[tuple[int, int, AttemptStanding | None]]) -> None:
    """Write where attempts stand, rows (id, claim, where), under the fence; None: they go on."""
    source = tx.dialect.rows({"id": int, "claim": int, "name": str, "value": str})
    values = [(i, claim, standing_name(claim), msgspec.json.encode(found).decode()) for i, claim, found in rows]
    tx.run(
        "INSERT INTO schedd_task_values (task_id, name, value) "
        f"SELECT t.id, j.name, j.value FROM {source} j JOIN schedd_tasks t ON t.id = j.id WHERE {fence(IS_HELD)} "
        "ON CONFLICT (task_id, name) DO UPDATE SET value = excluded.value",
        rows=bind_rows(values),
        worker=worker,
    )


def write_values(tx: Tx, values: Sequence[tuple[int, str, str]]) -> None:
    """Insert or replace side values: rows (task id, name, value)."""
    source = tx.dialect.rows({"task_id": int, "name": str, "value": str})
    tx.run(
        "INSERT INTO schedd_task_values (task_id, name, value) "
        f"SELECT task_id, name, value FROM {source} j WHERE true "
        "ON CONFLICT (task_id, name) DO UPDATE SET value = excluded.value",
        rows=bind_rows(values),
    )
