"""Dead letters: tasks that failed for good. Finding them by cause, running them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from scheduler.errors import ConfigError
from scheduler.model.names import check_text
from scheduler.model.parent_names import named_in
from scheduler.model.spec import MAX_KEY, TaskId, check_id
from scheduler.model.state import TaskState
from scheduler.model.task_filter import TaskFilter
from scheduler.operations.changes import payload_maker
from scheduler.operations.desk import Desk
from scheduler.operations.tasks import Other
from scheduler.store.admin.replay import replay_task
from scheduler.store.db.tx import Tx
from scheduler.store.read import audit, dead_letters, figures
from scheduler.store.read.audit import AuditRecord
from scheduler.store.read.dead_causes import WINDOW as WINDOW
from scheduler.store.read.dead_causes import DeadCause as DeadCause
from scheduler.store.read.dead_causes import causes as causes
from scheduler.store.read.dead_letters import CauseGroup as CauseGroup
from scheduler.store.read.dead_letters import count as count
from scheduler.store.read.dead_letters import not_dead
from scheduler.store.read.shared_causes import SharedCause, by_common_text
from scheduler.store.read.shared_causes import over_kinds as over_kinds
from scheduler.store.read.tasks import TaskRecord, get_task, get_tasks
from scheduler.store.tasks.patch import StoredPayload
from scheduler.store.tasks.stale import NONE, Stale, rerun_on_new

MAX_GROUPS = 1000  # causes of one kind that are looked at for what several kinds have in common

ENTRIES = 500  # of the audit that are looked at for the replays of a kind


class Replayed(NamedTuple):
    """``ids``: of the tasks that run, in the order of the dead letters; ``tasks``: the same as they are stored.

    ``left``: tasks that would have come back with them, and who has their keys; ``stale``: what ran on the old ends.
    """

    ids: list[TaskId]
    tasks: list[TaskRecord]
    left: Mapping[int, Other]
    stale: Stale


class Letters(NamedTuple):
    """``cut``: only so many of the newest were looked at, and there are older ones; None: at all. ``more``: there are
    more than were asked for."""

    tasks: list[TaskRecord]
    more: bool
    cut: int | None


class Causes(NamedTuple):
    """Dead letters by kind and cause. ``shared``: causes that several kinds have in common; ``totals``: of each group
    how many letters and kinds there are of its cause. ``whole``: no group was left out of these; ``more`` and ``cut``:
    as :class:`Letters` has them."""

    groups: list[CauseGroup]
    shared: list[SharedCause]
    totals: list[tuple[int, int]]
    whole: bool
    more: bool
    cut: int | None


def replay(
    desk: Desk,
    ids: Sequence[int],
    *,
    key: str | None = None,
    payload: Any = UNSET,
    fields: Mapping[str, Any] | None = None,
    copy: bool = False,
    rerun: bool = False,
) -> Replayed:
    """Run dead letters again with new budgets, all or none; what ended because of them comes back.

    ``copy``: new tasks with keys of their own run, the dead letters stay. Of one, ``key`` replaces its key, ``payload``
    or some ``fields`` what it works on. ``rerun``: what ran on their failures runs again after them. Raises
    UnknownTaskError, InvalidTransitionError if one is not dead (any more), PayloadError, UnregisteredKindError;
    DuplicateKeyError if another task holds a key or has completed under it since.
    """
    wanted = list(dict.fromkeys(check_id(task_id) for task_id in ids))
    if key is not None:
        check_text(key, "a key", MAX_KEY)
    changed = payload is not UNSET or fields is not None
    if len(wanted) > 1 and (changed or key is not None):
        raise ConfigError("a key and a payload go with one dead letter")

    def work(tx: Tx) -> Replayed:
        new = None
        if changed:
            task = get_task(tx, wanted[0])
            present = StoredPayload(
                task.id, task.kind, task.payload or "null", task.schema_version, named_in(task.headers)
            )
            new = payload_maker(desk, tx, payload, fields)(present)
        made = [replay_task(tx, task_id, key=key, payload=new, copy=copy) for task_id in wanted]
        left = {task_id: other for again in made for task_id, other in again.left.items()}
        stale = NONE if copy else rerun_on_new(tx, wanted, rerun=rerun)
        return Replayed([again.id for again in made], get_tasks(tx, [again.id for again in made]), left, stale)

    return desk.write(work)


def newest(tx: Tx, wanted: TaskFilter, limit: int, *, every: bool = False) -> Letters:
    """Dead letters, those that died last first. ``every``: all are looked at, not the newest 100,000 only."""
    among = None if every else dead_letters.newest(tx, wanted, figures.MAX_COUNTED)
    tasks = dead_letters.find(tx, among or wanted, limit + 1)
    return Letters(tasks[:limit], len(tasks) > limit, _cut(among))


def groups(tx: Tx, wanted: TaskFilter, limit: int, *, every: bool = False) -> Causes:
    """Dead letters by kind and cause, the largest group first. ``every``: as :func:`newest` has it."""
    among = None if every else dead_letters.newest(tx, wanted, figures.MAX_COUNTED)
    most = max(limit, MAX_GROUPS)
    found = dead_letters.groups(tx, among or wanted, most + 1)
    shared = {
        group[1:4]: (sum(one.number for one in several), len({one.kind for one in several}))
        for _, several in by_common_text(found, lambda group: group.error)
        for group in several
    }
    shown = found[:limit]
    totals = [shared[group[1:4]] for group in shown]
    whole = among is None and len(found) <= most
    return Causes(shown, over_kinds(tx, found), totals, whole, len(found) > limit, _cut(among))


def history(tx: Tx, kind: str, fingerprint: str) -> list[tuple[AuditRecord, int]]:
    """Who replayed or purged letters of this cause lately, the newest first: a bulk once, with how many it changed."""
    entries = audit.of_dead_letters(tx, ENTRIES)[::-1]
    tasks = {t.id: t for t in get_tasks(tx, [e.task_id for e in entries if e.task_id is not None and not e.bulk])}
    made: dict[str, tuple[AuditRecord, int]] = {}
    for entry in entries:
        chosen = entry.filter or {}
        about = tasks.get(entry.task_id or 0)
        ours = chosen.get("fingerprint") == fingerprint and chosen.get("kind") == kind
        if ours or (about is not None and about.kind == kind and about.fingerprint in (None, fingerprint)):
            key = entry.bulk or f"entry {entry.id}"
            made[key] = (made[key][0], made[key][1] + 1) if key in made else (entry, 1)
    return list(made.values())[:20]


def _cut(among: TaskFilter | None) -> int | None:
    return None if among is None else figures.MAX_COUNTED


def refuse_living(task_id: int, state: str, entries: Iterable[object]) -> None:
    """Raise InvalidTransitionError for a task that neither is a dead letter nor was one, as its audit has it."""
    if state != TaskState.DEAD.value and not list(entries):
        raise not_dead(task_id, TaskState(state))
