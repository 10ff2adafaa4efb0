"""Moves the jobs of an APScheduler 3 into schedules and tasks: docs/guides/from-apscheduler.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scheduler.operations import apscheduler
from scheduler.operations.apscheduler import ApschedulerLine as ApschedulerLine

if TYPE_CHECKING:
    from scheduler.app import Scheduler


def move(
    jobs: Scheduler, source: Any, *, kinds: Mapping[str, str] | None = None, dry_run: bool = False
) -> list[ApschedulerLine]:
    """Store the jobs of ``source``, all or none: an APScheduler of this program, or the URL of its SQL job store.

    Returns what each became, with its differences; print them. A second call updates the same schedules. ``kinds``: the
    kind of a function (``"shop.jobs:nightly"``), where that is not its name. ``dry_run``: change nothing. Raises
    ConfigError for a job store that cannot be read, DuplicateScheduleError, StoreUnavailableError.
    """
    found = apscheduler.jobs_in(source) if isinstance(source, str) else apscheduler.jobs_of(source)
    return apscheduler.move(jobs.desk, found, kinds, dry_run=dry_run)
