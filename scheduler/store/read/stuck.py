"""What will not move by itself, as sentences; and that of it which workers say in their rows."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model.redact import redact
from scheduler.model.texts import counted, listed, rfc3339, span_text
from scheduler.model.trouble import Side, Trouble
from scheduler.store.read.workers import LOST, WorkerRecord, far_text, hung_text, orphans_text


class Stuck(NamedTuple):
    """Something that will not move by itself: a short name, a sentence, how many and some of them."""

    problem: str
    text: str
    number: int
    tasks: tuple[int, ...] = ()


def of_workers(found: list[WorkerRecord]) -> list[Stuck]:
    """Workers that lost their leases or are too far away, orphaned attempts, handlers that hang."""
    return [*_lost(found), *_far(found), *_bodies(found), *hung(found)]


def of_transports(found: list[WorkerRecord], now: int) -> list[Stuck]:
    """Sources and sinks that cannot be used, and sources whose messages come too late."""
    return [_transport(several, now) for _, several in sorted(_reports(found).items())]


def transport_troubles(found: list[WorkerRecord], now: int) -> dict[tuple[Side, str], list[str]]:
    """What is wrong with sources and sinks, by side and name."""
    texts: dict[tuple[Side, str], list[str]] = {}
    for (side, name, _), several in sorted(_reports(found).items()):
        texts.setdefault((side, name), []).append(_transport(several, now).text)
    return texts


def _reports(found: list[WorkerRecord]) -> dict[tuple[Side, str, bool], list[tuple[WorkerRecord, Trouble]]]:
    reports: dict[tuple[Side, str, bool], list[tuple[WorkerRecord, Trouble]]] = {}
    for worker in found:
        for one in worker.capacity.troubles if worker.alive else ():
            reports.setdefault((one.side, one.name, one.old), []).append((worker, one))
    return reports


def _transport(reports: list[tuple[WorkerRecord, Trouble]], now: int) -> Stuck:
    """One source or sink, which several workers may have. The earliest of them speaks."""
    first = min((one for _, one in reports), key=lambda one: one.since)
    name = f"{first.side} {first.name}"
    if first.old:
        text = f"messages of {name} come {span_text(now - first.since)} after they were sent"
        return Stuck("old_messages", f"{text}; the transport drops them after {span_text(first.keeps)}", len(reports))
    where, since = listed([worker.label for worker, _ in reports]), rfc3339(first.since, exact=False)
    text = f"{name} cannot be used since {since} on worker {where}: {redact(first.text)}"
    return Stuck(first.side, text, len(reports))


def _far(found: list[WorkerRecord]) -> list[Stuck]:
    return [Stuck("short lease", text, 0) for text in map(far_text, found) if text is not None]


def _lost(found: list[WorkerRecord]) -> list[Stuck]:
    return [
        Stuck(
            "lease",
            f"worker {w.label} {_end_of(w)} and still holds {counted(w.holds, 'task')}; "
            "the next live worker takes them back",
            w.holds,
        )
        for w in found
        if w.lost
    ]


def _end_of(worker: WorkerRecord) -> str:
    if worker.state == LOST:
        return f"lost its lease at {rfc3339(worker.lease_until, exact=False)}"
    return "is gone, its process has ended,"


def _bodies(found: list[WorkerRecord]) -> list[Stuck]:
    """Handlers that lost their claims and run on: a thread cannot be ended, and until it ends it keeps its slot."""
    return [Stuck("orphans", text, w.orphans, w.orphaned_tasks) for w in found if (text := orphans_text(w)) is not None]


def hung(found: list[WorkerRecord]) -> list[Stuck]:
    """Handlers that hang, and what can be done."""
    return [
        Stuck("hung", hung_text(w, hang), 1 + len(hang.behind), tuple(i for i in (hang.task, *dict(hang.behind)) if i))
        for w in found
        for hang in w.hung
    ]
