"""``/audit``: who changed what, when, through which door, and why."""

from __future__ import annotations

import shlex
from typing import Any

from scheduler.client.json_views import audit_view
from scheduler.console.masks import masked
from scheduler.console.render import RenderedPage
from scheduler.console.routes import Nav, page
from scheduler.console.visit import Visit
from scheduler.operations.audit import AuditFilter, AuditRecord, shown
from scheduler.operations.filter import instant

ROWS = 100
_TEXTS = ("by", "action", "subject", "via", "bulk")


@page("/audit", nav=Nav("Audit", "a", 80))
def audit(visit: Visit) -> RenderedPage:
    """Changes, the newest first."""
    given = {name: visit.asked(name) for name in (*_TEXTS, "since", "until")}
    task = visit.number("task", least=1)
    cursor = visit.number("cursor", least=1)
    now = visit.jobs.database.now()
    since, until = (instant(given[name], now) if given[name] else None for name in ("since", "until"))
    by, action, subject, via, bulk = (given[name] or None for name in _TEXTS)
    wanted = AuditFilter(task, action, by, subject, via, bulk, since, until)
    with visit.read() as tx:
        found, more = shown(tx, wanted, ROWS, cursor)
    rows = [_exactly(entry) for entry in found]
    words = [word for name, value in given.items() if value for word in (f"--{name}", value)]
    command = shlex.join(["schedctl", "audit", *([str(task)] if task else []), *words])
    data = {"entries": [{"about": entry.about, **audit_view(entry)} for entry in rows], "cursor": more}
    context: dict[str, Any] = {
        "rows": rows,
        "given": given | {"task": task or ""},
        "filtered": any(given.values()) or task is not None,
        "cursor": cursor,
        "more": more,
    }
    return RenderedPage("audit.html", data, context, command)


def _exactly(entry: AuditRecord) -> AuditRecord:
    """The same with numbers that scripts can read."""
    return entry._replace(
        detail=masked(entry.detail), filter=masked(entry.filter), before=masked(entry.before), after=masked(entry.after)
    )
