"""``schedctl settings``: slots, caps and rates in effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.options import common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, prints

if TYPE_CHECKING:
    from scheduler.store.db.tx import Tx
    from scheduler.store.settings import Setting


@click.command(name="settings")
@common
@prints(("setting", "value", "source"))
def settings_command(session: Session, /) -> None:
    """Show the slots of each live worker, and the caps and rates of kinds, keys and queues, as they are in effect.

    SOURCE names where a setting comes from: a program, a configuration, or `schedctl set`, by whom and since when.
    """
    database = session.existing()
    with database.read() as tx:
        rows = [*_pools(tx), *_limits(tx)]
    print_rows(session, rows)


def source_of(setting: Setting) -> str:
    """``schedctl set by alice since 2026-11-24T02:30:00Z: provider down``."""
    from scheduler.model.texts import rfc3339

    by = "" if setting.actor is None else f" by {setting.actor}"
    why = "" if setting.reason is None else f": {setting.reason}"
    return f"schedctl set{by} since {rfc3339(setting.at, exact=False)}{why}"


def _pools(tx: Tx) -> list[dict[str, Any]]:
    from scheduler.model.live_settings import POOL, pool_name
    from scheduler.store import settings
    from scheduler.store.read.workers import workers

    live = {setting.name: setting for setting in settings.records(tx) if setting.scope == POOL}
    rows = []
    for worker in workers(tx):
        for pool, (threads, tasks) in worker.capacity.pools.items():
            for name, size in (("slots", threads), ("async_slots", tasks)):
                found = [live[key] for key in (pool_name(pool, worker.id), pool_name(pool)) if key in live]
                stored = next((s for s in found if name in s.value), None)
                source = "its configuration"
                if stored is not None:
                    pending = "" if stored.value[name] == size else f"{stored.value[name]} soon, "
                    source = pending + source_of(stored)
                rows.append({"setting": f"worker {worker.id} pool {pool} {name}", "value": size, "source": source})
    return rows


def _limits(tx: Tx) -> list[dict[str, Any]]:
    from scheduler.model.live_settings import KEY, KIND, QUEUE, shown
    from scheduler.store import settings
    from scheduler.store.read.kinds import get_kind, kind_names

    live = {(setting.scope, setting.name): setting for setting in settings.records(tx)}
    rows = []
    for name in kind_names(tx):
        record = get_kind(tx, name)
        given = {} if record is None else record.options
        set_here = live.get((KIND, name))
        for option in ("max_concurrency", "rate_limit", "max_per_worker"):
            if set_here is not None and option in set_here.value:
                value, source = shown(set_here.value)[option], source_of(set_here)
            elif given.get(option) is not None:
                value, source = shown({option: given[option]})[option], "its type"
            else:
                continue
            rows.append({"setting": f"kind {name} {option}", "value": value, "source": source})
    for setting in live.values():
        if setting.scope in (KEY, QUEUE):
            rows += [
                {"setting": f"{setting.subject} {option}", "value": value, "source": source_of(setting)}
                for option, value in shown(setting.value).items()
            ]
    return rows
