"""Changes stored tasks that no worker holds: time, priority, queue, payload, headers, retries, timeout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from scheduler.errors import DuplicateKeyError, InvalidTransitionError, PayloadError
from scheduler.model.lanes import LANE_SEPARATOR, PLACED_LANE, QUARANTINE_LANE, derived_lane
from scheduler.model.parent_names import names_in, with_names
from scheduler.model.priority import Priority
from scheduler.model.state import RETRY, SCHEDULED, WAITING, TaskState
from scheduler.model.texts import rfc3339
from scheduler.model.unique import DerivedKey
from scheduler.ports import SECOND
from scheduler.store import audit
from scheduler.store.db.tx import Tx
from scheduler.store.tasks import envelopes, keys
from scheduler.store.tasks.attempts import INLINE, write_values
from scheduler.store.unknown import unknown

_CHANGEABLE = (WAITING, SCHEDULED, RETRY)
_COLUMNS = ("id", "state", "kind", "run_at", "priority", "queue", "headers", "retry", "max_attempts", "timeout")
_HEADERS = _COLUMNS.index("headers")
_READ = (
    f"SELECT {', '.join(f't.{name}' for name in _COLUMNS)} FROM schedd_tasks t WHERE {{among}} ORDER BY t.id {{lock}}"
)
_WITH_STEPS = "SELECT DISTINCT task_id FROM schedd_checkpoints WHERE {among}"
_PAYLOADS = (
    "SELECT t.id, t.kind, coalesce(t.payload, v.value), t.schema_version, t.headers FROM schedd_tasks t "
    "LEFT JOIN schedd_task_values v ON v.task_id = t.id AND v.name = 'payload' WHERE {among} ORDER BY t.id"
)


class NewPayload(NamedTuple):
    """A new payload: JSON text, and all that derives from it: lane, schema version, the key of a kind that makes keys
    of its fields."""

    text: str
    lane: str
    schema_version: int
    key: DerivedKey | None = None


class StoredPayload(NamedTuple):
    """The payload of a stored task, as JSON text. ``named``: the names of its parents, whose results complete it."""

    id: int
    kind: str
    text: str
    schema_version: int
    named: frozenset[str] = frozenset()


Make = Callable[[StoredPayload], NewPayload]


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """What to change; UNSET stays. Times and spans are microseconds.

    ``run_at``: due at that time; ``delay``: due that long after the transaction's now. ``retry``: the policy as JSON
    and its attempts. ``payload``: called with the present payload of each task.
    """

    run_at: int | UnsetType = UNSET
    delay: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    headers: str | UnsetType | None = UNSET
    retry: tuple[str | None, int | None] | UnsetType = UNSET
    timeout: int | UnsetType | None = UNSET
    payload: Make | UnsetType = UNSET

    @property
    def empty(self) -> bool:
        """Whether it changes nothing."""
        return all(getattr(self, name) is UNSET for name in self.__struct_fields__)


class Patched(NamedTuple):
    """``changed``: id -> the values before and after, for people; ``refused``: id -> why it stays as it is;
    ``conflicts``: id -> who has the key that its new payload makes, so that it stays as it is."""

    changed: dict[int, dict[str, Any]]
    refused: dict[int, str]
    conflicts: Mapping[int, DuplicateKeyError] = MappingProxyType({})

    @property
    def same(self) -> list[int]:
        """Those that had these values already: nothing of them is changed, and the audit has no entry."""
        return [task_id for task_id, moved in self.changed.items() if not moved["after"]]

    def check(self) -> Patched:
        """The same, for callers that want all or none. Raises InvalidTransitionError, DuplicateKeyError."""
        for error in self.conflicts.values():
            raise error
        for reason in self.refused.values():
            raise InvalidTransitionError(reason)
        return self


def patch(tx: Tx, ids: Sequence[int], change: Patch) -> Patched:
    """Change those of these tasks that no worker holds and that are not in the middle of an attempt.

    Payload and headers of a task with recorded steps stay: the steps belong to those that it has. Raises
    UnknownTaskError for the first unknown id, PayloadError.
    """
    wanted = sorted(set(ids))
    bound = {"ids": tx.dialect.bind_ids(wanted)}
    rows = {row[0]: row for row in tx.rows(_READ.format(among=tx.dialect.among("t.id"), lock=tx.dialect.lock), **bound)}
    for task_id in ids:
        if task_id not in rows:
            raise unknown(tx, task_id)
    refused = {i: _why_not(i, row[1]) for i, row in rows.items() if row[1] not in _CHANGEABLE}
    if change.payload is not UNSET or change.headers is not UNSET:
        stepped = tx.rows(_WITH_STEPS.format(among=tx.dialect.among("task_id")), **bound)
        refused |= {
            row[0]: f"task {row[0]} has recorded steps; its payload and headers stay"
            for row in stepped
            if row[0] not in refused
        }
    free = [i for i in wanted if i not in refused]
    if not free:
        return Patched({}, refused)
    values = _columns(change, tx.now)
    replaced, conflicts = set[int](), dict[int, DuplicateKeyError]()
    if change.payload is not UNSET:
        replaced, conflicts = _set_payloads(tx, free, change.payload)
        free = [i for i in free if i not in conflicts]
    # New headers leave the parents' names as they are.
    names = {i: known for i in free if "headers" in values and (known := names_in(rows[i][_HEADERS]))}
    own = {i: values | {"headers": with_names(values["headers"], known)} for i, known in names.items()}
    if values and len(own) < len(free):
        _set(tx, [i for i in free if i not in own], values)
    for task_id, kept in own.items():
        _set(tx, [task_id], kept)
    changed = {i: _difference(rows[i], own.get(i, values), replaced) for i in free}
    audit.record(tx, "patch", tasks={i: moved for i, moved in changed.items() if moved["after"]})
    return Patched(changed, refused, conflicts)


def _why_not(task_id: int, code: int) -> str:
    state = TaskState.from_code(code)
    return f"task {task_id} is {state}; it {'has ended' if state.terminal else 'is under way'} and cannot be changed"


def _columns(change: Patch, now: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if change.run_at is not UNSET:
        values["run_at"] = max(change.run_at, now)
    elif change.delay is not UNSET:
        values["run_at"] = now + change.delay
    for name in ("priority", "queue", "headers", "timeout"):
        given = getattr(change, name)
        if given is not UNSET:
            values[name] = given
    if change.retry is not UNSET:
        values["retry"], values["max_attempts"] = change.retry
    return values


def _set(tx: Tx, ids: Sequence[int], values: Mapping[str, Any]) -> None:
    parts = [f"{name} = :{name}" for name in values]
    if values.get("headers") is not None:
        parts.append("extras = extras | 1")  # an attempt reads them
    if "run_at" in values:
        parts.append("check_at = CASE WHEN check_at > :now THEN :now ELSE check_at END")  # max_delay counts from then
    sql = f"UPDATE schedd_tasks SET {', '.join(parts)} WHERE {tx.dialect.among('id')}"
    tx.rows(sql, **values, ids=tx.dialect.bind_ids(ids), now=tx.now)


def _set_payloads(tx: Tx, ids: Sequence[int], make: Make) -> tuple[set[int], dict[int, DuplicateKeyError]]:
    """Returns the tasks that have another payload now, and those that keep theirs, since the new one's key is held."""
    replaced, conflicts = set[int](), dict[int, DuplicateKeyError]()
    for present in stored_payloads(tx, ids):
        made = make(present)
        if (made.text, made.schema_version) == (present.text, present.schema_version):
            continue
        envelopes.keep(tx, present.id)
        try:
            set_payload(tx, present.id, made)
            replaced.add(present.id)
        except DuplicateKeyError as error:
            conflicts[present.id] = error
    return replaced, conflicts


def stored_payloads(tx: Tx, ids: Sequence[int]) -> list[StoredPayload]:
    """The payloads of these tasks by their ids. Raises PayloadError if one is missing."""
    rows = tx.rows(_PAYLOADS.format(among=tx.dialect.among("t.id")), ids=tx.dialect.bind_ids(ids))
    for task_id, _, text, *_ in rows:
        if text is None:
            raise PayloadError(f"the payload of task {task_id} is missing from the database")
    return [
        StoredPayload(i, kind, text, version, frozenset(names_in(headers))) for i, kind, text, version, headers in rows
    ]


def new_key(payload: NewPayload | None, key: str | None) -> str | None:
    """The key that a task with this one gets with a new payload; None: it keeps what it has."""
    derived = None if payload is None else payload.key
    return derived.text if derived is not None and derived.replaces(key) else None


def set_payload(tx: Tx, task_id: int, payload: NewPayload) -> None:
    """Give a task that no worker holds another payload, and what derives from it.

    Raises DuplicateKeyError if another task has the key that the payload makes; then nothing is changed.
    """
    if payload.key is not None:
        row = tx.run("SELECT kind, key FROM schedd_tasks WHERE id = :id", id=task_id).one()
        if new_key(payload, row.key) is not None:
            keys.change(tx, task_id, row.kind, payload.key)
    inline = len(payload.text) <= INLINE
    before = tx.run("SELECT lane FROM schedd_tasks WHERE id = :id", id=task_id).scalar()
    tx.run(
        "UPDATE schedd_tasks SET payload = :text, schema_version = :version, lane = "
        f"CASE WHEN substr(lane, 1, 1) = '{QUARANTINE_LANE}' THEN '{QUARANTINE_LANE}' ELSE '' END || "
        f"CASE WHEN executor IS NULL THEN '' ELSE '{PLACED_LANE}' || executor || :separator END || "
        "CAST(:lane AS text) WHERE id = :id",  # what is in quarantine stays there, and its executor's too
        separator=LANE_SEPARATOR,
        id=task_id,
        text=payload.text if inline else None,
        lane=derived_lane(payload.lane, before or ""),
        version=payload.schema_version,
    )
    if inline:
        tx.run("DELETE FROM schedd_task_values WHERE task_id = :id AND name = 'payload'", id=task_id)
    else:
        write_values(tx, [(task_id, "payload", payload.text)])


_TEXTS: dict[str, Callable[[Any], Any]] = {
    "run_at": rfc3339,
    "priority": lambda code: Priority(code).label,
    "headers": lambda text: None if text is None else "set",
    "timeout": lambda us: None if us is None else us / SECOND,
}


def _difference(row: tuple[Any, ...], values: Mapping[str, Any], replaced: Collection[int]) -> dict[str, Any]:
    """What a patch changes of a task, without what may be secret."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for name, value in values.items():
        had = row[_COLUMNS.index(name)]
        if had != value:
            text = _TEXTS.get(name, lambda same: same)
            before[name], after[name] = text(had), text(value)
    if row[0] in replaced:
        after["payload"] = "replaced"
    return {"before": before, "after": after}
