"""Makes and runs bulks with a frozen scope: cancel, retry, rerun, replay, purge of what a filter chose once.

The scope is a list of ids, so that a bulk changes what its plan showed and nothing else. Each transaction changes
100 of them and records what became of each, so that a person may have any process go on where another one has died:
no task is changed twice.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from scheduler.errors import ConfigError, InvalidTransitionError, SchedulerError
from scheduler.model.actor import acting
from scheduler.model.bulk import BATCH, BulkOptions, BulkState, BulkVerb, check_rate
from scheduler.model.secrets import has_secret_name
from scheduler.model.state import TaskState
from scheduler.model.task_filter import TaskFilter
from scheduler.operations.bulk_changes import apply
from scheduler.operations.desk import Desk
from scheduler.operations.payloads import patched_payload
from scheduler.store import bulks
from scheduler.store.admin import bulk_plan
from scheduler.store.admin.bulk_plan import BulkPlan as BulkPlan
from scheduler.store.admin.bulk_plan import Canary, canary_of, rows_of
from scheduler.store.admin.uncancel import UNBEGUN
from scheduler.store.bulks import BulkItem as BulkItem
from scheduler.store.bulks import BulkRecord as BulkRecord
from scheduler.store.bulks import get as get
from scheduler.store.bulks import handed_over as handed_over
from scheduler.store.bulks import items as items
from scheduler.store.bulks import newest as newest
from scheduler.store.db.tx import Tx
from scheduler.store.masks import masks
from scheduler.store.tasks.patch import stored_payloads
from scheduler.store.tasks.stale import NONE, Stale, ran_on_bulk

CANARY_EVERY_S = 0.5  # between two looks whether the task that goes first has ended


_PLAIN = BulkOptions()


class BulkOutcome(NamedTuple):
    """``canary``: the task that went first, of a bulk that is not done; ``stale``: what ran on the old ends."""

    canary: Canary | None
    stale: Stale


def create(desk: Desk, verb: BulkVerb, wanted: TaskFilter, options: BulkOptions = _PLAIN) -> BulkRecord:
    """Freeze the tasks that a filter chooses now, with a plan. Nothing is changed before :func:`start`.

    Raises ConfigError; PayloadError if a payload with :attr:`BulkOptions.fields` does not fit its kind.
    """
    made = plan(desk, verb, wanted, options)
    if options.fields is not None:
        with desk.read() as tx:
            _check_fields(tx, made, options.fields)

    def work(tx: Tx) -> BulkRecord:
        name = bulks.insert(tx, verb, made.ids, options=options, chosen=wanted.chosen(), plan=made.shown())
        return bulks.get(tx, name)

    return desk.database.change(work)


def plan(desk: Desk, verb: BulkVerb, wanted: TaskFilter, options: BulkOptions = _PLAIN) -> BulkPlan:
    """Read what a bulk would do. Raises ConfigError."""
    return bulk_plan.plan(desk.database, verb, wanted, options)


def _check_fields(tx: Tx, made: BulkPlan, fields: dict[str, Any]) -> None:
    """Refuse fields that are secrets, which everybody would see, or that a payload of each kind does not fit."""
    if made.verb != "replay" or not fields:
        raise ConfigError("fields are those that a replay changes: give at least one")
    declared = masks(tx, list(made.kinds))
    for kind in made.kinds:
        hidden = [
            name
            for name, value in fields.items()
            if has_secret_name({name: value})
            or (kind in declared and declared[kind].secrets(msgspec.json.encode({name: "a secret"}).decode()))
        ]
        if hidden:
            raise ConfigError(f"{', '.join(hidden)} of {kind} is a secret, which a bulk would show: replay one by one")
    seen = set[str]()
    for row in rows_of(tx, made.ids).values() if len(made.kinds) else ():
        if row.kind not in seen:
            seen.add(row.kind)
            patched_payload(tx, stored_payloads(tx, [row.id])[0], fields)


def start(desk: Desk, name: str, *, canary: bool = False, rate: float | None = None) -> BulkRecord:
    """Let a bulk be run, or go on. ``canary``: one task runs first; ``rate``: tasks a second at most.

    Raises UnknownBulkError, ConfigError, InvalidTransitionError if it is done.
    """
    checked = check_rate(rate)
    return desk.database.change(lambda tx: bulks.start(tx, name, canary=canary, rate=checked))


def stop(desk: Desk, name: str) -> BulkRecord:
    """Let a bulk stop after its present transaction. Raises UnknownBulkError, InvalidTransitionError."""
    return desk.database.change(lambda tx: bulks.stop(tx, name))


def undo(desk: Desk, name: str) -> BulkRecord:
    """Make a bulk that takes back a cancel of what had not begun: those tasks wait, or are scheduled, again.

    It is planned, as any other; the old one has ended, also if it was running, stopped or interrupted. Raises
    UnknownBulkError; InvalidTransitionError if nothing of it can be taken back.
    """

    def work(tx: Tx) -> BulkRecord:
        bulk = bulks.get(tx, name, tx.dialect.lock)
        found = bulks.done_before(tx, name, UNBEGUN)
        if bulk.verb != "cancel" or not found:
            raise InvalidTransitionError(
                f"bulk {name} cannot be undone: only a cancel of tasks that had not begun can be taken back"
            )
        bulks.end_undone(tx, bulk)
        made = bulks.insert(tx, "uncancel", found, chosen={"bulk": name}, undoes=name)
        return bulks.get(tx, made)

    return desk.database.change(work)


def outcome(desk: Desk, bulk: BulkRecord) -> BulkOutcome:
    """What else is to say of a bulk that ran."""
    with desk.read() as tx:
        return outcome_in(tx, bulk)


def outcome_in(tx: Tx, bulk: BulkRecord) -> BulkOutcome:
    """:func:`outcome` within a read."""
    over = bulk.state is BulkState.DONE
    return BulkOutcome(
        None if over else canary_of(tx, bulk), ran_on_bulk(tx, bulk.name, bulk.verb) if bulk.done else NONE
    )


def run(
    desk: Desk,
    name: str,
    *,
    runner: str | None = None,
    each: Callable[[BulkRecord], object] = lambda _: None,
    stop: threading.Event | None = None,
    wait: Callable[[float], object] = time.sleep,
    patient: bool = True,
) -> BulkRecord:
    """Run a started bulk until it is done or stopped. ``each``: called after each transaction.

    What breaks it off, or ``stop``, leaves it interrupted. ``wait``: waits so many seconds. Without ``patient`` this
    returns while the task that goes first has not ended; ``runner`` then calls again within a minute. Raises
    UnknownBulkError; InvalidTransitionError if another process runs it; StoreUnavailableError.
    """
    database = desk.database
    runner = secrets.token_hex(8) if runner is None else runner
    with database.read() as tx:
        position = bulks.get(tx, name).position
    try:
        while True:
            bulk = database.change(lambda tx: step(tx, name, runner))
            if bulk.state is not BulkState.RUNNING:
                desk.wake()
                return bulk
            moved, position = bulk.position - position, bulk.position
            if moved:
                desk.wake()
                each(bulk)
            if stop is not None and stop.is_set():
                database.change(lambda tx: bulks.leave(tx, name, runner))
                return bulk
            if not moved and not patient:
                return bulk
            if not moved:
                wait(CANARY_EVERY_S)
            elif bulk.options.rate is not None:
                wait(moved / bulk.options.rate)
    except BaseException:
        with suppress(SchedulerError):  # if that fails, too, its time runs out
            database.change(lambda tx: bulks.leave(tx, name, runner))
        raise


def step(tx: Tx, name: str, runner: str) -> BulkRecord:
    """Change the next 100 tasks of a bulk, and record it. One that is not to be run comes back as it is.

    With a canary the first that is changed is alone: while it has not ended, the bulk comes back unchanged. It stops if
    no worker would run that one.
    """
    bulk = bulks.take(tx, name, runner)
    if bulk.state is not BulkState.RUNNING:
        return bulk
    alone = bulk.options.canary and bulk.done == 0
    canary = canary_of(tx, bulk)
    if canary is not None and canary.end is not TaskState.SUCCESS:
        if canary.end is None and canary.hindered is None:
            return bulks.keep(tx, bulk)
        with acting(bulk.who):
            return bulks.stop_after_canary(tx, bulk, canary.task_id, canary.end, canary.hindered)
    some, _ = bulks.items(tx, name, limit=1 if alone else _batch(bulk.options.rate), cursor=bulk.position - 1)
    places = {item.task_id: item.position for item in some}
    with acting(bulk.who):
        done = apply(tx, bulk.verb, list(places), bulk.options)
    rows = [(places[task_id], item.before, item.result, item.note) for task_id, item in done.items.items()]
    return bulks.write(tx, bulk, rows, len(done.also))


def _batch(rate: float | None) -> int:
    """How many tasks a transaction changes: with a rate what is due in a second, so that nothing comes in bursts."""
    return BATCH if rate is None else max(1, min(BATCH, round(rate)))
