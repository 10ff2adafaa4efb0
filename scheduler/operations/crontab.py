"""Lines of a crontab as schedules of commands, and what of each line is not as with cron."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scheduler.errors import ConfigError, InvalidScheduleError, PayloadError
from scheduler.model.recurrence import at_start, cron
from scheduler.model.spec import EdgeSpec, TaskSpec
from scheduler.model.state import Otherwise, When
from scheduler.model.texts import counted
from scheduler.operations.desk import Desk
from scheduler.operations.kinds import get_kind
from scheduler.operations.published import new_spec
from scheduler.store import schedule_sets
from scheduler.store.db.tx import Tx
from scheduler.store.schedule_runs import GRAPH
from scheduler.store.schedule_sets import SetChange
from scheduler.store.schedules import ScheduleSpec

COMMAND, MAIL = "CommandTask", "EmailTask"
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_VARIABLE = re.compile(r"""\s*(?P<quote>["']?)(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P=quote)\s*=(?P<value>.*)""")
_FIELDS = 5
_SHELL = "/bin/sh"


class CrontabLine(NamedTuple):
    """A line that asks for runs. ``notes``: the differences from cron."""

    number: int
    text: str
    name: str
    spec: ScheduleSpec
    notes: list[str]


class CrontabEntry(NamedTuple):
    """A line as it is written: the time, the command and the variables above it."""

    number: int
    text: str
    expression: str
    user: str | None
    command: str
    variables: Mapping[str, str]


def entries(text: str, *, system: bool) -> Iterator[CrontabEntry]:
    """The lines of a crontab that ask for runs. ``system``: with a column for the user, as in /etc/crontab.

    Raises InvalidScheduleError for a line that is none.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        variable = _VARIABLE.fullmatch(line)
        if variable is not None:
            variables[variable["name"]] = _unquoted(variable["value"].strip())
            continue
        fields = 1 if stripped.startswith("@") else _FIELDS
        words = stripped.split(None, fields + system)
        if len(words) <= fields + system:
            wanted = "a time, a user and a command" if system else "a time and a command"
            raise InvalidScheduleError(f"line {number} is not {wanted}: {stripped:.80}")
        user = words[fields] if system else None
        yield CrontabEntry(number, stripped, " ".join(words[:fields]), user, words[-1], dict(variables))


def read(
    tx: Tx, text: str, source: str, *, zone: str, system: bool = False, overlap: str = "allow", mail: bool = True
) -> list[CrontabLine]:
    """What each line becomes. ``source``: a short name of the crontab, which names of schedules begin with.

    Raises InvalidScheduleError, PayloadError that names the line.
    """
    found: list[CrontabLine] = []
    seen: Counter[str] = Counter()
    for entry in entries(text, system=system):
        try:
            found.append(_line(tx, entry, source, seen, zone, overlap, mail))
        except (InvalidScheduleError, PayloadError) as error:
            raise type(error)(f"line {entry.number}: {error}") from None
    return found


def apply(
    desk: Desk, lines: Sequence[CrontabLine], owner: str, *, exact: bool, dry_run: bool, allow_empty: bool = False
) -> SetChange:
    """Register the schedules, all or none. ``exact``: delete what the owner has besides.

    Raises DuplicateScheduleError; ConfigError if no line is left and schedules would be deleted, unless
    ``allow_empty``: the file may have been lost, or cut short.
    """
    specs = [line.spec._replace(owner=owner) for line in lines]

    def work(tx: Tx) -> SetChange:
        if exact:
            done = schedule_sets.sync(tx, specs, owner, dry_run=dry_run)
            if done.removed and not (specs or dry_run or allow_empty):
                raise ConfigError(
                    f"no line asks for runs, so all of {owner} would be deleted "
                    f"({counted(len(done.removed), 'schedule')}): add --allow-empty if you mean that"
                )
            return done
        done = schedule_sets.sync(tx, specs, owner, dry_run=True)._replace(removed=())
        if not dry_run:
            schedule_sets.register_all(tx, specs)
        return done

    return desk.plan(work, dry_run=dry_run)


def _line(
    tx: Tx, entry: CrontabEntry, source: str, seen: Counter[str], zone: str, overlap: str, mail: bool
) -> CrontabLine:
    variables = entry.variables
    notes: list[str] = []
    expression = _NICKNAMES.get(entry.expression, entry.expression)
    if expression == "@reboot":
        notes.append("it runs when a daemon starts and no other is live, not at each start of the machine")
    elif expression.startswith("@"):
        raise InvalidScheduleError(f"{expression} is no time; there are {', '.join(_NICKNAMES)}, @reboot")
    command, stdin = _split(entry.command)
    if stdin is not None:
        command = f"printf %s {shlex.quote(stdin)} | {{ {command}\n}}"
        notes.append("the text after % reaches the command by a pipe")
    if entry.user is not None:
        notes.append(f"it runs as the daemon's user, not as {entry.user}")
    shell = variables.get("SHELL", _SHELL)
    env = {name: value for name, value in variables.items() if name not in ("SHELL", "MAILTO", "MAILFROM", "CRON_TZ")}
    payload: dict[str, Any] = {"argv": [command], "shell": True}
    if shell != _SHELL:
        payload = {"argv": [shell, "-c", command]}
    if env:
        payload["env"] = env
    if "HOME" in env and os.path.isabs(env["HOME"]):
        payload["cwd"] = env["HOME"]
    tz = variables.get("CRON_TZ", zone)
    digest = hashlib.sha256(f"{entry.user}\0{entry.command}".encode()).hexdigest()[:8]
    program = re.sub(r"[^A-Za-z0-9._-]", "", os.path.basename(entry.command.split()[0]))[:40] or "command"
    seen[digest] += 1
    name = f"{source}/{program}-{digest}" + (f"-{seen[digest]}" if seen[digest] > 1 else "")
    task = new_spec(COMMAND, payload, get_kind(tx, COMMAND))
    to = [one for one in re.split(r"[,\s]+", variables.get("MAILTO", "")) if one]
    graph = None
    if to and mail:
        task.key = COMMAND
        letter = new_spec(MAIL, _letter(to, name, entry), get_kind(tx, MAIL))
        letter.key, letter.edges = MAIL, [EdgeSpec(0, When.FAILURE, Otherwise.SKIP, local=True)]
        graph = [task, letter]
        notes.append(f"mail goes to {', '.join(to)} when it fails, not whenever it prints")
    elif to:
        notes.append("its output is kept with the task, and no mail is sent")
    spec = ScheduleSpec(
        name,
        at_start() if expression == "@reboot" else cron(expression, tz).named(name),
        TaskSpec(GRAPH, "", "") if graph else task,
        "none",  # as cron does, which runs nothing for the time in which it did not run
        overlap,
        replace=True,  # a line may gain or lose the mail of its failures, and the name has its command in it
        graph=graph,
    )
    return CrontabLine(entry.number, entry.text, name, spec, notes)


def _letter(to: list[str], name: str, entry: CrontabEntry) -> dict[str, Any]:
    return {
        "to": to,
        "subject": f"{name} failed",
        "body": f"This line of the crontab failed:\n\n    {entry.text}\n\n"
        f"`schedctl cron runs {shlex.quote(name)}` lists its runs, `schedctl logs ID` shows what one has printed.\n",
    }


def _split(text: str) -> tuple[str, str | None]:
    """The command, and its standard input: the text after the first %, where each further % is the end of a line."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", text)]
    if len(parts) == 1:
        return parts[0], None
    return parts[0].rstrip(), "\n".join(parts[1:]) + "\n"


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value
