"""Crontabs: what each line becomes, and what of it is said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler import InvalidScheduleError, PayloadError, Scheduler
from scheduler.model.recurrence import at_start
from scheduler.operations.crontab import CrontabLine, read
from support.databases import Database

TEXT = r"""
# comment
PATH = "/opt/bin:/usr/bin"
MAILTO=
0 2 * * 1-5 backup --all >/dev/null
@daily  echo 50\% of $HOME%first%second
MAILTO=ops@example.com, boss@example.com
SHELL=/bin/bash
CRON_TZ=Europe/Berlin
HOME=/srv
*/5 * * * *	check
*/5 * * * *	check
@reboot start-it
"""


def lines_of(database: Database, text: str, **given: Any) -> list[CrontabLine]:
    jobs = Scheduler.for_testing(url=database.url)
    try:
        with jobs.database.read() as tx:
            return read(tx, text, "tab", zone="UTC", **given)
    finally:
        jobs.close()


def payload(line: CrontabLine, at: int = 0) -> Any:
    task = line.spec.task if line.spec.graph is None else line.spec.graph[at]
    return msgspec.json.decode(task.payload)


def test_what_each_line_becomes(database: Database) -> None:
    backup, echo, check, again, reboot = lines_of(database, TEXT)
    path = {"PATH": "/opt/bin:/usr/bin"}
    assert payload(backup) == {"argv": ["backup --all >/dev/null"], "shell": True, "env": path}
    assert (backup.number, backup.notes) == (5, [])
    assert (backup.spec.recurrence.expression, backup.spec.catchup) == ("0 2 * * 1-5", "none")
    assert payload(echo)["argv"] == ["printf %s 'first\nsecond\n' | { echo 50% of $HOME\n}"]
    assert str(echo.name).startswith("tab/echo-")
    assert (echo.spec.recurrence.expression, echo.spec.recurrence.tz) == ("0 0 * * *", "UTC")
    assert payload(check) == {"argv": ["/bin/bash", "-c", "check"], "env": {**path, "HOME": "/srv"}, "cwd": "/srv"}
    assert check.spec.recurrence.tz == "Europe/Berlin"
    assert payload(check, 1)["to"] == ["ops@example.com", "boss@example.com"]
    assert "mail goes to ops@example.com, boss@example.com when it fails" in check.notes[0]
    assert check.name.startswith("tab/check-")
    assert again.name == f"{check.name}-2"
    assert reboot.spec.recurrence == at_start()
    assert "when a daemon starts and no other is live" in reboot.notes[0]


def test_a_system_crontab_has_users(database: Database) -> None:
    (line,) = lines_of(database, "17 * * * * root cd / && run-parts /etc/cron.hourly", system=True)
    assert payload(line)["argv"] == ["cd / && run-parts /etc/cron.hourly"]
    assert line.notes == ["it runs as the daemon's user, not as root"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 2 * *", "line 1 is not a time and a command: 0 2 * *"),
        ("\n61 * * * * x", "line 2: "),
        ("@fortnightly x", "line 1: @fortnightly is no time; there are @hourly"),
        ("CRON_TZ=Nowhere\n0 0 * * * x", "line 2: "),
        ("0 0 30 2 * x", "line 1: "),
    ],
)
def test_a_line_that_is_none(database: Database, text: str, says: str) -> None:
    with pytest.raises((InvalidScheduleError, PayloadError)) as raised:
        lines_of(database, text)
    assert str(raised.value).startswith(says)
