"""Problems that workers tell of in their own rows: lost leases, hung handlers, sources and sinks out of reach."""

from __future__ import annotations

from scheduler.model.capacity import MAX_UNMOVED, UnmovedHandler
from scheduler.model.problem import Problem, Side, TransportProblem
from scheduler.model.redact import redact
from scheduler.model.texts import counted, listed, rfc3339, span_text
from scheduler.ports import SECOND
from scheduler.store.broken_rows import options_of
from scheduler.store.read.snapshot import Snapshot
from scheduler.store.read.workers import LOST, WorkerRecord, clock_text, failing_text, far_text, hung_text, orphans_text

_EXAMPLES = 5
CLOCK_OFF = 60 * SECOND


def of_transports(seen: Snapshot) -> list[Problem]:
    """Sources and sinks that cannot be used, and sources whose messages come too late."""
    return [_transport(several, seen.tx.now) for _, several in sorted(_reports(seen.workers).items())]


def sinks_of_nobody(seen: Snapshot) -> list[Problem]:
    """Kinds of live workers that tell a sink of their successes which no worker has ever had."""
    served = {kind for worker in seen.fleet.claiming for kind in worker.kinds}
    wanted: dict[str, list[str]] = {}
    names = set()
    for name, options in seen.tx.run("SELECT name, options FROM schedd_kinds ORDER BY name"):
        names.add(name)
        sink = options_of(options).get("on_success")
        if name in served and isinstance(sink, str):
            wanted.setdefault(sink, []).append(name)
    return [
        Problem("no_sink", f"no worker has [{sink}], which on_success of {listed(kinds)} names", len(kinds))
        for sink, kinds in sorted(wanted.items())
        if sink not in names
    ]


def transport_troubles(found: list[WorkerRecord], now: int) -> dict[tuple[Side, str], list[str]]:
    """What is wrong with sources and sinks, by side and name."""
    texts: dict[tuple[Side, str], list[str]] = {}
    for (side, name, _), several in sorted(_reports(found).items()):
        texts.setdefault((side, name), []).append(_transport(several, now).text)
    return texts


def _reports(found: list[WorkerRecord]) -> dict[tuple[Side, str, bool], list[tuple[WorkerRecord, TransportProblem]]]:
    reports: dict[tuple[Side, str, bool], list[tuple[WorkerRecord, TransportProblem]]] = {}
    for worker in found:
        for one in worker.capacity.troubles if worker.alive else ():
            reports.setdefault((one.side, one.name, one.old), []).append((worker, one))
    return reports


def _transport(reports: list[tuple[WorkerRecord, TransportProblem]], now: int) -> Problem:
    """One source or sink, which several workers may have. The earliest of them speaks."""
    first = min((one for _, one in reports), key=lambda one: one.since)
    name = f"{first.side} {first.name}"
    if first.old:
        text = f"messages of {name} come {span_text(now - first.since)} after they were sent"
        return Problem(
            "old_messages",
            f"{text}; the transport drops them after {span_text(first.keeps)}",
            len(reports),
            (),
            first.since,
        )
    where, since = listed([worker.label for worker, _ in reports]), rfc3339(first.since, exact=False)
    text = f"{name} cannot be used since {since} on worker {where}: {redact(first.text)}"
    return Problem(first.side, text, len(reports), (), first.since)


def far(seen: Snapshot) -> list[Problem]:
    """Workers too far from the database for their leases."""
    return [Problem("short lease", text, 0) for text in map(far_text, seen.workers) if text is not None]


def cycles(seen: Snapshot) -> list[Problem]:
    """Workers whose cycles fail."""
    return [Problem("cycles", text, 0) for text in map(failing_text, seen.workers) if text is not None]


def clocks(seen: Snapshot) -> list[Problem]:
    """Workers whose clocks are far from the server's, or from that of the others."""
    texts = (clock_text(worker, seen.tx.now, CLOCK_OFF) for worker in seen.workers)
    return [Problem("clock", text, 1) for text in texts if text is not None]


def lost(seen: Snapshot) -> list[Problem]:
    """Workers that lost their leases or whose processes are gone, until another one takes back what they hold."""
    return [
        Problem(
            "lease",
            f"worker {w.label} {_end_of(w)} and still holds {counted(w.holds, 'task')}; "
            "the next live worker takes them back",
            w.holds,
            since=w.lease_until if w.state == LOST else None,
        )
        for w in seen.workers
        if w.lost
    ]


def _end_of(worker: WorkerRecord) -> str:
    if worker.state == LOST:
        return f"lost its lease at {rfc3339(worker.lease_until, exact=False)}"
    return "is gone, its process has ended,"


def orphans(seen: Snapshot) -> list[Problem]:
    """Handlers that lost their claims and run on: a thread cannot be ended, and until it ends it keeps its slot."""
    return [
        Problem("orphans", text, w.orphans, w.orphaned_tasks)
        for w in seen.workers
        if (text := orphans_text(w)) is not None
    ]


def unmoved(seen: Snapshot) -> list[Problem]:
    """Handlers that have not moved for long, though nothing limits them: by kind, and by where they stand."""
    found: dict[tuple[str, str], list[tuple[WorkerRecord, UnmovedHandler]]] = {}
    for worker in seen.workers:
        for one in worker.unmoved:
            found.setdefault((one.kind, one.where), []).append((worker, one))
    problems = []
    for (kind, where), several in sorted(found.items()):
        since = min(one.since for _, one in several)
        tasks = tuple(sorted(one.task for _, one in several))
        some = "at least " if any(len(worker.unmoved) >= MAX_UNMOVED for worker, _ in several) else ""
        who = f"task {tasks[0]} ({kind})" if len(tasks) == 1 else f"{some}{counted(len(tasks), 'task')} of kind {kind}"
        on = listed(sorted({worker.label for worker, _ in several}))
        verb = "has" if len(tasks) == 1 else "have"
        text = f"{who} on worker {on} {verb} not moved since {rfc3339(since, exact=False)}{at(where)}"
        problems.append(Problem("unmoved", text, len(tasks), tasks[:_EXAMPLES], since))
    return problems


def at(where: str) -> str:
    """``, at file:line function``."""
    return f", at {where}" if where else ""


def hung(seen: Snapshot) -> list[Problem]:
    """Handlers that hang, and what can be done."""
    return [
        Problem(
            "hung",
            hung_text(w, hang),
            1 + len(hang.behind),
            tuple(i for i in (hang.task, *dict(hang.behind)) if i),
            hang.since,
        )
        for w in seen.workers
        for hang in w.hung
    ]
