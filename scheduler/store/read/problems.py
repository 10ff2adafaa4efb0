"""The table of problems: what can be wrong, how it is found, what mends it, and who says so.

A row here is all that a new problem needs: ``schedctl status``, ``doctor``, alerts, metrics, the console's first page
and the reference are made of this table. ``tests/cli/test_problems.py`` plants each problem, and asks each voice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from scheduler.model.problem import Problem
from scheduler.model.texts import listed
from scheduler.store.broken_rows import UNREADABLE, broken_rows
from scheduler.store.read import stuck_tasks, stuck_workers
from scheduler.store.read.snapshot import Snapshot

Find = Callable[[Snapshot], list[Problem]]


class Voice(StrEnum):
    """Where an operator hears of a problem."""

    WHY = "why"
    STATUS = "status --check"
    DOCTOR = "doctor"
    ALERT = "alert"
    PAGE = "console"


EVERYWHERE = (Voice.WHY, Voice.STATUS, Voice.DOCTOR, Voice.ALERT, Voice.PAGE)
OF_NO_TASK = EVERYWHERE[1:]


class ProblemType(NamedTuple):
    """A row of the table.

    ``meaning``: what is wrong, in words; ``remedy``: what to do about it; ``find``: reads it from the store, bounded.
    ``rule``: the alert rule that it belongs to; ``check``: the check of ``schedctl doctor``. ``after``: seconds until
    it counts. ``page``: a page of the console, (label, path). ``bad``: work stands still because of it.
    """

    name: str
    meaning: str
    remedy: str
    find: Find
    check: str
    rule: str = "problem"
    after: float = 0
    bad: bool = False
    page: tuple[str, str] | None = None
    voices: tuple[Voice, ...] = EVERYWHERE


def broken(seen: Snapshot) -> list[Problem]:
    """Rows that cannot be read, once another look has met one."""
    if not seen.unreadable:
        return []
    rows = broken_rows(seen.tx)
    text = f"{listed([one.text for one in rows])}: `schedctl doctor` tells what to do"
    named = tuple(one.task for one in rows if one.task is not None)[: stuck_tasks.EXAMPLES]
    return [Problem("broken", text, len(rows), named)]


_WORKERS, _SCHEDULES = ("Workers", "/workers"), ("Schedules", "/schedules")
_RUNNING, _WAITING = ("Running tasks", "/tasks?q=state:running"), ("Waiting tasks", "/tasks?q=state:waiting")

# The worst first: so they are listed, and shown.
TABLE: tuple[ProblemType, ...] = (
    ProblemType(
        "writes",
        "The database takes no writes, for instance as a standby.",
        "The database takes no writes: see to it first.",
        stuck_tasks.writes,
        "writes",
        bad=True,
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "broken",
        "A row of the database cannot be read. No version of schedd writes such rows.",
        "`schedctl doctor` tells what to do.",
        broken,
        "rows",
        bad=True,
    ),
    ProblemType(
        "idle",
        "No worker takes tasks: none is live, or each drains. An alert needs a live daemon, so none tells of this.",
        "Start schedd, or resume a worker: `schedctl worker resume ID`.",
        stuck_tasks.idle,
        "workers",
        bad=True,
        page=_WORKERS,
        voices=(Voice.WHY, Voice.STATUS, Voice.PAGE),
    ),
    ProblemType(
        "unserved",
        "Tasks are ready, but no live worker serves their kind, queue, version or slot.",
        "Start a worker that serves them, or look at what the workers serve: `schedctl workers`.",
        stuck_tasks.unserved_of,
        "ready tasks",
        rule="unserved",
        bad=True,
        page=_WORKERS,
    ),
    ProblemType(
        "ring",
        "Tasks await one another, or themselves, so that none of them ever goes on.",
        "Cancel one of them: `schedctl cancel ID`.",
        stuck_tasks.rings,
        "awaits",
        bad=True,
        page=("Suspended tasks", "/tasks?q=state:suspended"),
    ),
    ProblemType(
        "hung",
        "A handler ignores its timeout or blocks its event loop.",
        "Restart the worker, or cancel the task by force: `schedctl cancel --force ID`.",
        stuck_workers.hung,
        "handlers",
        rule="stalled",
        bad=True,
        page=_WORKERS,
    ),
    ProblemType(
        "unmoved",
        "An attempt without a timeout or a heartbeat has not moved for `[worker] unmoved_after`.",
        "`schedctl show ID` has its stack. If it hangs, `schedctl cancel --force ID` ends it; give its kind a timeout.",
        stuck_workers.unmoved,
        "movement",
        rule="stalled",
        page=_RUNNING,
    ),
    ProblemType(
        "lease",
        "A worker lost its lease, or its process is gone, while it holds tasks.",
        "Nothing to do: the next live worker takes them back.",
        stuck_workers.lost,
        "claims",
        rule="lease_lost",
        page=_WORKERS,
    ),
    ProblemType(
        "short lease",
        "A worker claims nothing, as the database answers too slowly for its lease.",
        "Set [worker] lease higher.",
        stuck_workers.far,
        "leases",
        rule="lease_lost",
        bad=True,
        page=_WORKERS,
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "cycles",
        "A worker renews its lease, but its cycles fail: it neither claims tasks nor records what has ended.",
        "See to what it says. The worker's log has the whole error.",
        stuck_workers.cycles,
        "cycles",
        rule="lease_lost",
        bad=True,
        page=_WORKERS,
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "orphans",
        "Attempts that lost their claims still fill their slots, since a thread cannot be ended.",
        "Restart the worker when its other tasks may be interrupted: `schedctl worker restart ID`.",
        stuck_workers.orphans,
        "attempts",
        rule="stalled",
        page=_WORKERS,
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "failing",
        "Of the attempts of a kind within 10 minutes, nine in ten failed, and there were 20 or more of one cause.",
        "`schedctl dlq list` shows the causes. Hold the kind back until it is mended: `schedctl pause --kind NAME`.",
        stuck_tasks.failing,
        "failures",
        bad=True,
        page=("Dead letters", "/dead"),
    ),
    ProblemType(
        "capped",
        "Tasks have waited for 5 minutes behind a cap, and all that hold it run for three times longer than usual.",
        "Look at what holds the cap, and cancel that: `schedctl cancel ID`.",
        stuck_tasks.capped,
        "limits",
        after=300,
        bad=True,
        page=_RUNNING,
    ),
    ProblemType(
        "overdue",
        "Attempts run past their timeouts.",
        "Cancel them: `schedctl cancel ID`, with `--force` if their handlers do not look.",
        stuck_tasks.overdue,
        "timeouts",
        rule="stalled",
        page=_RUNNING,
    ),
    ProblemType(
        "stalled",
        "Attempts run without the heartbeat that their kind asks for.",
        "Look at their logs: `schedctl logs ID`. Cancel them if they hang.",
        stuck_tasks.stalled,
        "heartbeats",
        rule="stalled",
        page=_RUNNING,
    ),
    ProblemType(
        "schedule",
        "Schedules are due and have not fired.",
        "Is a daemon running? Trigger what must not wait: `schedctl cron trigger NAME`.",
        stuck_tasks.late_schedules,
        "schedules",
        rule="late_schedule",
        after=60,
        page=_SCHEDULES,
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "zone",
        "A schedule's next fire time is none by its zone's present rules, or this machine does not know its zone.",
        "Restart a worker: it finds the fire time again. Install this machine's time zones anew: the package tzdata.",
        stuck_tasks.other_zones,
        "schedules",
        rule="late_schedule",
        after=60,
        page=_SCHEDULES,
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "success",
        "Tasks wait for the failure of what has succeeded, so they never run.",
        "Cancel them: `schedctl cancel ID`.",
        stuck_tasks.after_ended_parents,
        "retries",
        page=_WAITING,
    ),
    ProblemType(
        "parent",
        "Tasks wait for a parent that has ended, and that only a retry lets succeed.",
        "Retry the parent: `schedctl retry ID`. The children go on by themselves.",
        stuck_tasks.after_ended_parents,
        "retries",
        page=_WAITING,
    ),
    ProblemType(
        "source",
        "A daemon cannot receive from a source of messages.",
        "`schedctl sources check` connects and says what is wrong.",
        stuck_workers.of_transports,
        "messages",
        rule="unreachable",
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "sink",
        "A daemon cannot send to a sink of messages. The messages wait meanwhile.",
        "`schedctl sinks check` connects and says what is wrong; messages wait meanwhile.",
        stuck_workers.of_transports,
        "messages",
        rule="unreachable",
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "no_sink",
        "A task type names a sink in `on_success` that no worker has ever had. Its messages would wait for ever.",
        "Mend the name, or start a daemon that has the sink as `[sinks.NAME]`.",
        stuck_workers.sinks_of_nobody,
        "sinks",
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "old_messages",
        "Messages of a source come so late that its transport may drop some.",
        "Run more workers, or have the transport keep messages for longer.",
        stuck_workers.of_transports,
        "messages",
        rule="old_messages",
        page=_WORKERS,
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "held",
        "Ordered messages have waited for a day for those before them.",
        "Run them with `schedctl inbox release SOURCE`, or have the missing messages sent.",
        stuck_tasks.held_messages,
        "messages",
        after=86_400,
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "clock",
        "The clock of a worker is off by more than a minute.",
        "Set the clock of its machine right, and let it keep to a time server.",
        stuck_workers.clocks,
        "workers' clocks",
        page=_WORKERS,
        voices=OF_NO_TASK,
    ),
    ProblemType(
        "ahead",
        "A clock that was ahead has set due times far from now.",
        "Pause and resume each schedule; cancel and retry each task.",
        stuck_tasks.ahead,
        "due times",
        after=60,
        page=_SCHEDULES,
    ),
    ProblemType(
        "unserved_schedule",
        "A schedule makes tasks that no live worker runs.",
        "Start a worker that serves the kind, or stop the schedule: `schedctl cron pause NAME`.",
        stuck_tasks.schedules_without_worker,
        "schedules' tasks",
        rule="unserved",
        page=_SCHEDULES,
        voices=OF_NO_TASK,
    ),
)
BY_NAME: Mapping[str, ProblemType] = {row.name: row for row in TABLE}
_ORDER = {row.name: place for place, row in enumerate(TABLE)}


def problems(seen: Snapshot, rows: Iterable[ProblemType] = TABLE) -> list[Problem]:
    """All that is wrong, the worst first. A row that cannot be read ends the search that meets it, and no other.

    ``rows``: those of the table that are searched for. A search may find problems of its other rows, too.
    """
    found: list[Problem] = []
    for find in dict.fromkeys(row.find for row in rows if row.find is not broken):
        try:
            found += find(seen)
        except UNREADABLE:
            seen.unreadable = True
    found += broken(seen)
    found.sort(key=lambda one: _ORDER[one.name])
    return [one if one.remedy else one._replace(remedy=BY_NAME[one.name].remedy) for one in found]
