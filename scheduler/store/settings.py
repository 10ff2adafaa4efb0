"""Stores live settings: what operators have changed while daemons run. See model/live_settings.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from scheduler.model.actor import actor
from scheduler.model.lanes import LANE_SEPARATOR
from scheduler.model.live_settings import decode, shown
from scheduler.store import audit
from scheduler.store.db.tx import Tx

# One value of a statement that is read anyway: JSON of all settings, NULL for none. See LiveSettings.of().
IN_EFFECT = {
    "sqlite": (
        "(SELECT CASE WHEN count(*) > 0 THEN json_group_array(json_array(scope, name, value)) END "
        "FROM (SELECT scope, name, value FROM schedd_settings ORDER BY scope, name) s)"
    ),
    "postgresql": (
        "(SELECT CAST(json_agg(json_build_array(scope, name, value) ORDER BY scope, name) AS text) "
        "FROM schedd_settings)"
    ),
}


class StoredSetting(NamedTuple):
    """One live setting: its ``value`` holds since ``at`` (microseconds)."""

    scope: str
    name: str
    value: dict[str, Any]
    at: int
    actor: str | None
    reason: str | None

    @property
    def subject(self) -> str:
        """``kind Mail``, ``key Mail/ada``, ``key ada`` of all kinds, ``pool high``, ``queue etl``."""
        return subject_of(self.scope, self.name)


def subject_of(scope: str, name: str) -> str:
    """What a setting is about, for people."""
    return f"{scope} {name.lstrip(LANE_SEPARATOR).replace(LANE_SEPARATOR, '/')}"


_ROWS = "SELECT t.scope, t.name, t.value, t.at, t.actor, t.reason FROM schedd_settings t"


def records(tx: Tx) -> list[StoredSetting]:
    """All live settings, by scope and name."""
    rows = tx.run(f"{_ROWS} ORDER BY t.scope, t.name")
    return [StoredSetting(row[0], row[1], decode(row[2]), *row[3:]) for row in rows]


def change(tx: Tx, scope: str, name: str, values: Mapping[str, Any], *, reset: bool = False) -> bool:
    """Set these values beside those that hold; ``reset``: in place of all. Nothing is left: what programs say holds
    again. Returns whether anything has changed. The acting actor and reason are kept with it.
    """
    lock = tx.dialect.lock
    place = {"scope": scope, "name": name}
    row = tx.run(f"{_ROWS} WHERE t.scope = :scope AND t.name = :name {lock}", **place).first()
    before = {} if row is None else decode(row[2])
    after = dict(values) if reset else before | dict(values)
    if before == after:
        return False
    who = actor()
    if after:
        tx.run(
            "INSERT INTO schedd_settings (scope, name, value, at, actor, reason) "
            "VALUES (:scope, :name, :value, :at, :actor, :reason) ON CONFLICT (scope, name) DO UPDATE SET "
            "value = excluded.value, at = excluded.at, actor = excluded.actor, reason = excluded.reason",
            **place,
            value=msgspec.json.encode(after).decode(),
            at=tx.now,
            actor=who.name if who.name is not None else audit.user(),
            reason=who.reason,
        )
    else:
        tx.run("DELETE FROM schedd_settings WHERE scope = :scope AND name = :name", **place)
    audit.record(tx, "settings changed", subject=subject_of(scope, name), before=shown(before), after=shown(after))
    return True
