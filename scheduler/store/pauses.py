"""Pauses of queues, of kinds, or of everything: no worker claims what is paused; what runs goes on."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model.actor import actor
from scheduler.model.pauses import ALL, KIND, QUEUE, SOURCE
from scheduler.model.texts import rfc3339
from scheduler.store import audit
from scheduler.store.db.tx import Tx

# One value of a statement that is read anyway: JSON of what is paused, NULL for nothing. See Pauses.of().
IN_EFFECT = {
    "sqlite": (
        "(SELECT CASE WHEN count(*) > 0 THEN json_group_array(json_array(scope, name)) END "
        "FROM (SELECT scope, name FROM schedd_pauses ORDER BY scope, name) p)"
    ),
    "postgresql": (
        "(SELECT CAST(json_agg(json_build_array(scope, name) ORDER BY scope, name) AS text) FROM schedd_pauses)"
    ),
}


class Pause(NamedTuple):
    """One pause: ``scope`` all, queue, kind or source, of this ``name`` ('' for all), since ``at`` (microseconds)."""

    scope: str
    name: str
    at: int
    actor: str | None
    reason: str | None

    @property
    def subject(self) -> str:
        """``queue mail``, ``kind Report``, ``everything``."""
        return "everything" if self.scope == ALL else f"{self.scope} {self.name}"

    def holds(self, queue: str, kind: str) -> bool:
        """Whether it keeps tasks of this kind in this queue from being claimed."""
        return self.scope == ALL or (self.scope, self.name) in ((QUEUE, queue), (KIND, kind))

    def describe(self) -> str:
        """``queue mail is paused since 2026-11-24T02:30:00Z by alice: provider down``."""
        by = "" if self.actor is None else f" by {self.actor}"
        why = "" if self.reason is None else f": {self.reason}"
        return f"{self.subject} is paused since {rfc3339(self.at, exact=False)}{by}{why}"

    @property
    def remedy(self) -> str:
        """The command that ends it."""
        if self.scope == SOURCE:
            return f"schedctl sources resume {self.name}"
        return "schedctl resume --all" if self.scope == ALL else f"schedctl resume --{self.scope} {self.name}"


_ROW = "SELECT scope, name, at, actor, reason FROM schedd_pauses t"


def records(tx: Tx) -> list[Pause]:
    """All pauses, the oldest first."""
    return [Pause(*row) for row in tx.run(f"{_ROW} ORDER BY at, scope, name")]


def of_everything(tx: Tx) -> Pause | None:
    """The pause of everything, if there is one."""
    row = tx.run(f"{_ROW} WHERE scope = 'all'").first()
    return None if row is None else Pause(*row)


def of_source(tx: Tx, name: str) -> Pause | None:
    """The pause of a source of messages."""
    row = tx.run(f"{_ROW} WHERE scope = :scope AND name = :name", scope=SOURCE, name=name).first()
    return None if row is None else Pause(*row)


def of_kind(tx: Tx, name: str) -> Pause | None:
    """The pause of a kind by its name."""
    row = tx.run(f"{_ROW} WHERE scope = :scope AND name = :name", scope=KIND, name=name).first()
    return None if row is None else Pause(*row)


def of_task(tx: Tx, queue: str, kind: str) -> Pause | None:
    """The pause that keeps tasks of this kind in this queue from being claimed: the widest, if there are several."""
    row = tx.run(
        f"{_ROW} WHERE scope = 'all' OR (scope = 'queue' AND name = :queue) OR (scope = 'kind' AND name = :kind) "
        "ORDER BY CASE scope WHEN 'all' THEN 0 WHEN 'queue' THEN 1 ELSE 2 END LIMIT 1",
        queue=queue,
        kind=kind,
    ).first()
    return None if row is None else Pause(*row)


def pause(tx: Tx, scope: str, name: str) -> bool:
    """Pause; the acting actor and reason are kept with it. Returns whether it was not paused before.

    Pausing again with another reason replaces that, and leaves the beginning as it is.
    """
    who = actor()
    by = who.name if who.name is not None else audit.user()
    made = Pause(scope, name, tx.now, by, who.reason)
    fresh = tx.run(
        "INSERT INTO schedd_pauses (scope, name, at, actor, reason) VALUES (:scope, :name, :at, :actor, :reason) "
        "ON CONFLICT (scope, name) DO NOTHING RETURNING scope",
        **made._asdict(),
    ).first()
    if fresh is not None:
        audit.record(tx, "pause", subject=made.subject)
        return True
    before = tx.run(f"{_ROW} WHERE scope = :scope AND name = :name {tx.dialect.lock}", scope=scope, name=name).first()
    if who.reason is not None and before is not None and before.reason != who.reason:
        tx.run(
            "UPDATE schedd_pauses SET reason = :reason, actor = :actor WHERE scope = :scope AND name = :name",
            **made._asdict(),
        )
        audit.record(tx, "pause", subject=made.subject, before={"reason": before.reason})
    return False


def resume(tx: Tx, scope: str, name: str) -> bool:
    """End a pause. Returns whether there was one."""
    row = tx.run(
        "DELETE FROM schedd_pauses WHERE scope = :scope AND name = :name RETURNING scope, name, at, actor, reason",
        scope=scope,
        name=name,
    ).first()
    if row is None:
        return False
    ended = Pause(*row)
    before = {"since": rfc3339(ended.at), "actor": ended.actor, "reason": ended.reason}
    audit.record(tx, "resume", subject=ended.subject, before=before)
    return True
