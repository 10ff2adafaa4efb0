"""What people have set by hand and have not taken back: each with since when, by whom, why, and the command that does.

A colleague's pause explains more of a quiet night than any count, and nothing else tells of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from scheduler.model.lanes import LANE_SEPARATOR
from scheduler.model.live_settings import KEY, POOL, pool_of, shown
from scheduler.model.texts import listed, rfc3339
from scheduler.model.worker_states import STOPPED
from scheduler.ports import FOREVER
from scheduler.store import alerts, pauses, settings
from scheduler.store.db.tx import Tx

MOST = 50  # of each sort that are listed
_LATEST = 5000  # entries of the audit among which an older pause is looked for


class ByHand(NamedTuple):
    """``sort``: pause, schedule, setting, silence or worker. ``since``: microseconds. ``undo``: a command."""

    sort: str
    text: str
    since: int
    actor: str | None
    reason: str | None
    undo: str

    def describe(self) -> str:
        """``schedule nightly is paused since … by alice: provider down``."""
        by = "" if self.actor is None else f" by {self.actor}"
        why = "" if self.reason is None else f": {self.reason}"
        return f"{self.text} since {rfc3339(self.since, exact=False)}{by}{why}"


def set_by_hand(tx: Tx) -> list[ByHand]:
    """All of it, the oldest first; up to :data:`MOST` of each sort."""
    found = [*_pauses(tx), *_schedules(tx), *_settings(tx), *_silences(tx), *_workers(tx)]
    return sorted(found, key=lambda one: (one.since, one.text))


def _pauses(tx: Tx) -> Iterator[ByHand]:
    for one in pauses.records(tx)[:MOST]:
        yield ByHand("pause", f"{one.subject} is paused", one.at, one.actor, one.reason, one.remedy)


def _schedules(tx: Tx) -> Iterator[ByHand]:
    rows = tx.run(
        f"SELECT name, updated_at FROM schedd_schedules WHERE paused = 1 ORDER BY updated_at, name LIMIT {MOST}"
    ).fetchall()
    for name, at in rows:
        actor, reason, since = _who(tx, f"schedule {name}", "schedule paused", at)
        yield ByHand(
            "schedule", f"schedule {name} is paused", since, actor, reason, f"schedctl cron resume {shlex.quote(name)}"
        )


def _settings(tx: Tx) -> Iterator[ByHand]:
    for one in settings.records(tx)[:MOST]:
        values = ", ".join(f"{name} {value}" for name, value in shown(one.value).items())
        if one.scope == POOL:
            pool, worker = pool_of(one.name)
            target = f"pool {pool}" + ("" if worker is None else f" --worker {worker}")
        elif one.scope == KEY:
            kind, _, key = one.name.partition(LANE_SEPARATOR)
            target = f"key {shlex.quote(kind)} {shlex.quote(key)}"
        else:
            target = f"{one.scope} {shlex.quote(one.name)}"
        yield ByHand(
            "setting", f"{one.subject} has {values}", one.at, one.actor, one.reason, f"schedctl set {target} --reset"
        )


def _silences(tx: Tx) -> Iterator[ByHand]:
    for one in alerts.silences(tx)[:MOST]:
        of = listed([text for text in (one.kind, one.fingerprint) if text is not None])
        about = "all alerts" if one.rule == "*" else f"alert {one.rule}"
        text = f"{about}{f' of {of}' if of else ''}, silent until {rfc3339(one.until, exact=False)}, "
        yield ByHand("silence", f"{text}silenced", one.at, one.actor, one.reason, f"schedctl alerts unsilence {one.id}")


def _workers(tx: Tx) -> Iterator[ByHand]:
    rows = tx.run(
        "SELECT id, host, pid, drain_requested FROM schedd_workers WHERE drain_requested IS NOT NULL "
        f"AND state < {STOPPED} AND lease_until < {FOREVER} AND lease_until >= :now ORDER BY id LIMIT {MOST}",
        now=tx.now,
    ).fetchall()
    for row in rows:
        actor, reason, since = _who(tx, f"worker {row.id}", "drain", row.drain_requested)
        text = f"worker {row.id} ({row.host}:{row.pid}) is drained"
        yield ByHand("worker", text, since, actor, reason, f"schedctl worker resume {row.id}")


def _who(tx: Tx, subject: str, action: str, at: int) -> tuple[str | None, str | None, int]:
    """Who did this, why, and when: by the audit of that instant, else of lately."""
    row = tx.run(
        "SELECT actor, reason, at FROM schedd_audit WHERE at = :at AND subject = :subject AND action = :action LIMIT 1",
        at=at,
        subject=subject,
        action=action,
    ).first()
    if row is None:  # it was changed since, such as by a program that registered it anew
        row = tx.run(
            "SELECT actor, reason, at FROM (SELECT id, actor, reason, at, subject, action FROM schedd_audit "
            f"ORDER BY id DESC LIMIT {_LATEST}) a WHERE subject = :subject AND action = :action "
            "ORDER BY id DESC LIMIT 1",
            subject=subject,
            action=action,
        ).first()
    return (None, None, at) if row is None else (row.actor, row.reason, row.at)
