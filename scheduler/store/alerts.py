"""Rows of alerts: their states, silences, messages to be delivered, and the lease of the one evaluator.

A lease is taken and kept by compare-and-set on ``version``: what an evaluator that was overtaken writes is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.model.actor import actor
from scheduler.model.alerts import Alert, AlertKey, AlertPhase, Memory, Silence
from scheduler.model.texts import rfc3339, storable
from scheduler.ports import SECOND
from scheduler.store import audit
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx

MESSAGES_KEPT = 7 * 86_400 * SECOND  # how long delivered messages stay for `schedctl alerts history`
MESSAGE_LIFE = 86_400 * SECOND  # how long delivery is tried
MAX_WAIT = 3600 * SECOND  # longer than any pause between two tries, or a sink's timeout
MAX_SILENCES = 1000  # in effect at once


class Remembered(msgspec.Struct, frozen=True):
    """What evaluators hand to one another: the messages of the last hour, and samples of backlogs.

    ``samples``: (when, tasks due by queue) of the last minutes.
    """

    sent: tuple[int, ...] = ()
    flooded_at: int | None = None
    samples: tuple[tuple[int, dict[str, int]], ...] = ()

    @property
    def memory(self) -> Memory:
        """The part that the state machine needs."""
        return Memory(self.sent, self.flooded_at)


class AlertsLease(NamedTuple):
    """Whose turn it is to evaluate. ``holder``: "" for none; ``until``: microseconds."""

    holder: str
    until: int
    version: int
    remembered: Remembered

    def free_for(self, holder: str, now: int, longest: int) -> bool:
        """Whether this evaluator may take or keep it. ``longest``: of a lease; a longer one is of a clock that was set
        back since."""
        return self.holder == holder or not now < self.until <= now + longest


class AlertMessage(NamedTuple):
    """A message for one sink. ``body``: JSON; ``tries``: how often delivery was begun."""

    number: int
    id: str
    sink: str
    at: int
    body: dict[str, Any]
    tries: int


class AlertDelivery(NamedTuple):
    """A message as ``schedctl alerts history`` shows it."""

    id: str
    sink: str
    at: int
    event: str
    rule: str
    title: str
    tries: int
    delivered_at: int | None
    given_up: bool
    error: str | None


class SilenceRecord(NamedTuple):
    """A stored silence. ``at``: since when."""

    id: int
    rule: str
    kind: str | None
    fingerprint: str | None
    until: int
    at: int
    actor: str | None
    reason: str | None

    @property
    def silence(self) -> Silence:
        """What the state machine needs of it."""
        return Silence(self.rule, self.kind, self.fingerprint, self.until)

    @property
    def subject(self) -> str:
        """``alerts of retry_rate, kind Mail``."""
        what = "all alerts" if self.rule == "*" else f"alerts of {self.rule}"
        kind = "" if self.kind is None else f", kind {self.kind}"
        return what + kind + ("" if self.fingerprint is None else f", fingerprint {self.fingerprint}")


# The lease

_LEASE = "SELECT holder, until, version, memory FROM schedd_alert_lease WHERE name = 'evaluator'"


def lease(tx: Tx) -> AlertsLease:
    """The evaluators' lease, as it is now."""
    row = tx.run(_LEASE).first()
    if row is None:
        return AlertsLease("", 0, 0, Remembered())
    try:
        remembered = msgspec.json.decode(row.memory, type=Remembered)
    except msgspec.MsgspecError:  # of another version: at most some messages too many
        remembered = Remembered()
    return AlertsLease(row.holder, row.until, row.version, remembered)


def hold(tx: Tx, seen: AlertsLease, holder: str, until: int, remembered: Remembered) -> bool:
    """Take or keep the lease, if it still is as it was ``seen``. Returns whether that was so."""
    bound = {"holder": holder, "until": until, "memory": msgspec.json.encode(remembered).decode()}
    if seen.version == 0:
        made = tx.run(
            "INSERT INTO schedd_alert_lease (name, holder, until, version, memory) "
            "VALUES ('evaluator', :holder, :until, 1, :memory) ON CONFLICT (name) DO NOTHING RETURNING name",
            **bound,
        )
        return made.first() is not None
    kept = tx.run(
        "UPDATE schedd_alert_lease SET holder = :holder, until = :until, version = version + 1, memory = :memory "
        "WHERE name = 'evaluator' AND version = :version RETURNING name",
        version=seen.version,
        **bound,
    )
    return kept.first() is not None


def give_up(tx: Tx, holder: str) -> None:
    """Let another evaluator take the lease at once."""
    tx.run("UPDATE schedd_alert_lease SET until = 0 WHERE name = 'evaluator' AND holder = :holder", holder=holder)


# States

_COLUMNS: dict[str, type] = {
    "rule": str,
    "kind": str,
    "fingerprint": str,
    "phase": int,
    "since": int,
    "looks": int,
    "began": int,
    "number": int,
    "text": str,
    "detail": str,
    "fired_at": int,
    "notified_at": int,
    "step": int,
}
_NAMES = ", ".join(_COLUMNS)
_TOLD = [name for name in _COLUMNS if name not in AlertKey._fields]


def alerts(tx: Tx) -> dict[AlertKey, Alert]:
    """All alerts that are not ok."""
    found = {}
    for row in tx.run(f"SELECT {_NAMES} FROM schedd_alerts t ORDER BY rule, kind, fingerprint"):
        key = AlertKey(row.rule, row.kind, row.fingerprint)
        values = {name: row._mapping[name] for name in _TOLD}
        found[key] = Alert(key, **values | {"phase": AlertPhase(row.phase), "detail": json.loads(row.detail)})
    return found


def write(tx: Tx, before: Mapping[AlertKey, Alert], after: Mapping[AlertKey, Alert]) -> None:
    gone = [key for key in before if key not in after]
    if gone:
        keys = tx.dialect.rows({"rule": str, "kind": str, "fingerprint": str})
        tx.run(
            "DELETE FROM schedd_alerts WHERE (rule, kind, fingerprint) IN "
            f"(SELECT rule, kind, fingerprint FROM {keys} j)",
            rows=bind_rows(gone),
        )
    changed = [alert for key, alert in after.items() if before.get(key) != alert]
    if changed:
        rows = [
            (*alert.key, *({**alert._asdict(), "detail": _json(alert.detail)}[name] for name in _TOLD))
            for alert in changed
        ]
        replaced = ", ".join(f"{name} = excluded.{name}" for name in _TOLD)
        tx.run(
            f"INSERT INTO schedd_alerts ({_NAMES}) SELECT {_NAMES} FROM {tx.dialect.rows(_COLUMNS)} j WHERE true "
            f"ON CONFLICT (rule, kind, fingerprint) DO UPDATE SET {replaced}",
            rows=bind_rows(rows),
        )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# Silences

_SILENCE = "SELECT id, rule, kind, fingerprint, until, at, actor, reason FROM schedd_alert_silences t"


def silences(tx: Tx) -> list[SilenceRecord]:
    """The silences in effect, the oldest first."""
    rows = tx.run(f"{_SILENCE} WHERE until > :now ORDER BY id LIMIT {MAX_SILENCES}", now=tx.now)
    return [SilenceRecord(*row) for row in rows]


def silence(tx: Tx, wanted: Silence) -> SilenceRecord:
    """Make a silence; the acting actor and reason are kept with it."""
    tx.run("DELETE FROM schedd_alert_silences WHERE until <= :now", now=tx.now)
    who = actor()
    by = who.name if who.name is not None else audit.user()
    row = tx.run(
        "INSERT INTO schedd_alert_silences (rule, kind, fingerprint, until, at, actor, reason) "
        "VALUES (:rule, :kind, :fingerprint, :until, :at, :actor, :reason) RETURNING id",
        **wanted._asdict(),
        at=tx.now,
        actor=by,
        reason=who.reason,
    ).one()
    made = SilenceRecord(row.id, *wanted, tx.now, by, who.reason)
    audit.record(tx, "silence", subject=made.subject, after={"id": made.id, "until": rfc3339(made.until)})
    return made


def unsilence(tx: Tx, number: int) -> SilenceRecord | None:
    """End a silence. Returns it; None if there is none of this id in effect."""
    row = tx.run(
        "DELETE FROM schedd_alert_silences WHERE id = :id AND until > :now "
        "RETURNING id, rule, kind, fingerprint, until, at, actor, reason",
        id=number,
        now=tx.now,
    ).first()
    if row is None:
        return None
    ended = SilenceRecord(*row)
    before = {"id": ended.id, "until": rfc3339(ended.until), "actor": ended.actor, "reason": ended.reason}
    audit.record(tx, "unsilence", subject=ended.subject, before=before)
    return ended


# Messages


def new_id() -> str:
    """The id of a message, the same in each of its deliveries."""
    import secrets

    return secrets.token_hex(12)


def put(tx: Tx, messages: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Store messages, (sink, body), to be delivered. ``body``: with an ``id``."""
    rows = [(sink, body["id"], _json(body)) for sink, body in messages]
    if rows:
        tx.run(
            "INSERT INTO schedd_alert_messages (sink, id, body, at, next_at) SELECT sink, id, body, "
            "CAST(:now AS bigint), CAST(:now AS bigint) "
            f"FROM {tx.dialect.rows({'sink': str, 'id': str, 'body': str})} j",
            rows=bind_rows(rows),
            now=tx.now,
        )


def due(tx: Tx) -> set[str]:
    """The sinks for which a message is due now."""
    rows = tx.run("SELECT DISTINCT sink FROM schedd_alert_messages WHERE done = 0 AND next_at <= :now", now=tx.now)
    return {row.sink for row in rows}


def next_due(tx: Tx, sink: str) -> int | None:
    """When the next message for a sink is due; None if there is none."""
    found = tx.run(
        "SELECT min(next_at) FROM schedd_alert_messages WHERE done = 0 AND sink = :sink", sink=sink
    ).scalar_one()
    return None if found is None else int(found)


def take(tx: Tx, sink: str, hold_for: int) -> AlertMessage | None:
    """The oldest message due for a sink, which no other process takes for ``hold_for``; None if none is due."""
    row = tx.run(
        "UPDATE schedd_alert_messages SET next_at = :later, tries = tries + 1 WHERE number = "
        "(SELECT number FROM schedd_alert_messages t WHERE done = 0 AND sink = :sink AND next_at <= :now "
        f"ORDER BY number LIMIT 1 {tx.dialect.skip_locked}) RETURNING number, id, sink, at, body, tries",
        sink=sink,
        now=tx.now,
        later=tx.now + hold_for,
    ).first()
    return None if row is None else AlertMessage(row.number, row.id, row.sink, row.at, json.loads(row.body), row.tries)


def delivered(tx: Tx, number: int) -> None:
    """A message has arrived."""
    tx.run(
        "UPDATE schedd_alert_messages SET done = 1, delivered_at = :now, error = NULL WHERE number = :number",
        number=number,
        now=tx.now,
    )


def failed(tx: Tx, number: int, error: str, again_in: int) -> bool:
    """A delivery has failed: try again later. Returns False if it is too old, and given up."""
    row = tx.run(
        "UPDATE schedd_alert_messages SET next_at = :next, error = :error, "
        "done = CASE WHEN at < :oldest THEN 2 ELSE 0 END WHERE number = :number AND done = 0 RETURNING done",
        number=number,
        error=storable(error),
        next=tx.now + again_in,
        oldest=tx.now - MESSAGE_LIFE,
    ).first()
    return row is not None and row.done == 0


def clean(tx: Tx, sinks: Collection[str]) -> None:
    """Remove old messages; give up those for sinks that are no longer there once they are too old.

    A message whose next try lies further ahead than any pause is due now: the clock was set back.
    """
    tx.run(
        "UPDATE schedd_alert_messages SET next_at = :now WHERE done = 0 AND next_at > :latest",
        now=tx.now,
        latest=tx.now + MAX_WAIT,
    )
    tx.run("DELETE FROM schedd_alert_messages WHERE done > 0 AND at < :before", before=tx.now - MESSAGES_KEPT)
    late = "SELECT DISTINCT sink FROM schedd_alert_messages WHERE done = 0 AND at < :before"
    for row in tx.run(late, before=tx.now - MESSAGE_LIFE).fetchall():
        if row.sink not in sinks:
            tx.run(
                "UPDATE schedd_alert_messages SET done = 2, error = 'there is no such sink' "
                "WHERE done = 0 AND sink = :sink AND at < :before",
                sink=row.sink,
                before=tx.now - MESSAGE_LIFE,
            )


def history(tx: Tx, limit: int) -> Sequence[AlertDelivery]:
    """The newest messages, delivered or not."""
    rows = tx.run(
        "SELECT id, sink, at, body, tries, delivered_at, done, error FROM schedd_alert_messages t "
        "ORDER BY number DESC LIMIT :limit",
        limit=limit,
    ).fetchall()
    found = []
    for row in rows:
        body = json.loads(row.body)
        event, rule, title = (str(body.get(name) or "") for name in ("event", "rule", "title"))
        given_up = row.done == 2
        found.append(
            AlertDelivery(
                row.id, row.sink, row.at, event, rule, title, row.tries, row.delivered_at, given_up, row.error
            )
        )
    return found
