"""The store at a glance, now and at a past instant, and the verdict on how things stand, with the causes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from scheduler.errors import StoreUnavailableError
from scheduler.model.problem import Problem
from scheduler.model.redact import redact
from scheduler.model.texts import counted, span_text
from scheduler.model.times import SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.inbox_held import held_texts
from scheduler.store.read import status
from scheduler.store.read.by_hand import ByHand as ByHand
from scheduler.store.read.message_counts import dead_texts
from scheduler.store.read.problems import BY_NAME as BY_NAME
from scheduler.store.read.status import PausedWork
from scheduler.store.read.status import Status as Status
from scheduler.store.read.stuck_tasks import HELD_LONG, WAITS_LONG
from scheduler.store.read.workers import no_worker_reason

NEWS = 3600 * SECOND  # dead letters older than that are no news
_COMMAND = r"`(sched(?:ctl|d)[^`]*)`"
_PLACEHOLDER = r"\b[A-Z]{2,}\b"


class Glance(NamedTuple):
    """``idle``: why no worker takes new work; ``refused``: why the database takes no writes; ``messages``: sentences
    about messages that are held, or could become no task."""

    at: int
    status: Status
    idle: str | None
    refused: str | None
    messages: list[str]


def glance(tx: Tx, most: int = status.MAX_COUNTED) -> Glance:
    """How things stand. ``most``: tasks of each state that are counted."""
    found = status.status(tx, most)
    held = [one for one in found.held if tx.now - one.since <= HELD_LONG]  # others are among the problems
    return Glance(
        tx.now,
        found,
        no_worker_reason(found.workers),
        next((one.text for one in found.stuck if one.name == "writes"), None),
        [*held_texts(held, tx.now), *dead_texts(list(found.dead_messages), tx.now)],
    )


class Verdict(StrEnum):
    """``broken``: work stands still; ``degraded``: something is wrong, and work goes on."""

    WELL = "well"
    DEGRADED = "degraded"
    BROKEN = "broken"


class HealthCause(NamedTuple):
    """One thing that is wrong. ``bad``: work stands still because of it. ``next``: the command to go on with.

    ``act``: the verb and the task that mend it; ``pause``: the pause that it is.
    """

    problem: str
    bad: bool
    text: str
    next: str
    tasks: tuple[int, ...] = ()
    since: int | None = None
    remedy: str | None = None
    act: tuple[str, int] | None = None
    pause: PausedWork | None = None


class HealthStatus(NamedTuple):
    """``at``: microseconds; None: the store could not be asked."""

    verdict: Verdict
    at: int | None
    causes: list[HealthCause]

    def describe(self) -> str:
        """``broken: 2 causes``."""
        return self.verdict if not self.causes else f"{self.verdict}: {counted(len(self.causes), 'cause')}"


def unreachable(error: StoreUnavailableError) -> HealthStatus:
    """The verdict on a store that could not be asked."""
    told = re.search(_COMMAND, str(error))
    next_one = "schedctl doctor --install" if told is None else told[1]
    return HealthStatus(Verdict.BROKEN, None, [HealthCause("unreachable", True, str(error), next_one)])


def health_of(tx: Tx) -> HealthStatus:
    """The verdict in a transaction."""
    return verdict_of(glance(tx))


def verdict_of(seen: Glance) -> HealthStatus:
    """The verdict on what was seen."""
    found = [*causes(seen.status, seen.at), *_lesser(seen)]
    worst = Verdict.BROKEN if any(one.bad for one in found) else Verdict.DEGRADED if found else Verdict.WELL
    return HealthStatus(worst, seen.at, found)


def causes(found: Status, at: int) -> list[HealthCause]:
    """What is wrong, the worst first, each once: what follows from another cause is left out."""
    made = []
    reason = no_worker_reason(found.workers)
    if found.idle is not None and not any(one.text == reason for one in found.stuck):
        idle = _cause(found.idle)
        if any(one.name == "writes" for one in found.stuck):  # they have lost their leases, and get them back
            idle = idle._replace(remedy="Workers go on once the database takes writes.", next="schedctl doctor")
        made.append(idle)
    for one in found.stuck:
        if reason is None or one.name != "unserved" or not one.text.endswith(reason):  # the same text for each kind
            made.append(_cause(one))
    made += [_paused(one) for one in found.paused if one.pause.scope == "all"]
    oldest = found.oldest
    named = {task for one in made for task in one.tasks}
    if oldest is not None and at - oldest.since > WAITS_LONG and oldest.id not in named and not _is_said(found, made):
        words, remedy = ("", None) if oldest.cause is None else (oldest.cause.words, oldest.cause.remedy)
        age = span_text(at - oldest.since)
        text = f"task {oldest.id} ({oldest.kind}, queue {oldest.queue}) has been ready for {age}{words}"
        flow = next((one for one in found.flows if one.queue == oldest.queue), None)
        text = text if flow is None else f"{text}; in its queue {flow.prospect()}"
        why = f"schedctl why {oldest.id}"
        made.append(HealthCause("backlog", False, text, why, (oldest.id,), oldest.since, remedy))
    made.sort(key=lambda one: one.problem != "writes")  # what causes all else comes first
    return made


def next_command(one: Problem) -> str:
    """The first command of its text or its remedy that can be given as it stands."""
    row = BY_NAME[one.name]
    for command in re.findall(_COMMAND, f"{one.text}\n{one.remedy or row.remedy}"):
        if command.endswith(" ID") and one.tasks and " worker " not in command:
            command = f"{command.removesuffix('ID')}{one.tasks[0]}"
        if not re.search(_PLACEHOLDER, command):
            return str(command)
    pages = {"/workers": "schedctl workers", "/schedules": "schedctl cron list"}
    return pages.get(row.page[1] if row.page else "", "schedctl doctor")


def _cause(one: Problem) -> HealthCause:
    bad, text = BY_NAME[one.name].bad, redact(one.text)
    return HealthCause(one.name, bad, text, next_command(one), one.tasks, one.since, one.remedy, one.act)


def _paused(one: PausedWork) -> HealthCause:
    text = f"{one.pause.describe()} ({counted(one.due, 'task')} due behind it)"
    return HealthCause("paused", one.pause.scope == "all", text, one.pause.remedy, since=one.pause.at, pause=one)


def _is_said(found: Status, made: list[HealthCause]) -> bool:
    """Whether a sentence above tells why the oldest task waits."""
    cause = None if found.oldest is None or found.oldest.cause is None else found.oldest.cause.name
    return cause in ("paused", "unserved") and any(one.problem in ("idle", cause) for one in made)


def _lesser(seen: Glance) -> Iterator[HealthCause]:
    """What people have paused while tasks are due behind it, and what has died lately."""
    for one in seen.status.paused:
        if one.pause.scope != "all" and one.due:
            yield _paused(one)
    for cause in seen.status.causes.causes:
        if cause.error is not None and seen.at - cause.newest <= NEWS:
            text = f"{counted(cause.number, 'dead letter')} of {cause.of_kinds()}, the newest of late: {cause.error}"
            show = f"schedctl dlq show {cause.id}"
            yield HealthCause("dead_letters", False, text, show, (cause.id,), cause.oldest)
