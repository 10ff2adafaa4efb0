"""``schedctl wait`` and ``schedctl logs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from scheduler.cli import exits
from scheduler.cli.echo import say
from scheduler.cli.options import SPAN, TASK_ID, common, common_but_timeout
from scheduler.cli.output import masks_of, print_rows, reveals
from scheduler.cli.polling import Poller
from scheduler.cli.session import Session, note, prints
from scheduler.model.texts import beyond

_FIELDS = ("id", "state", "kind", "error")


@click.command(name="wait")
@click.argument("ids", metavar="ID…", type=TASK_ID, nargs=-1, required=True)
@click.option("--timeout", type=SPAN, metavar="S", help="Give up after this long (30, 5m); 0 only looks.")
@common_but_timeout
@prints(_FIELDS)
@click.pass_context
def wait_command(ctx: click.Context, session: Session, /, ids: tuple[int, ...], timeout: int | None) -> None:
    """Wait until all of these tasks have ended.

    Exit status 0 if all succeeded, 1 if one did not, 124 if the time was up first. If the database goes away
    meanwhile, the command waits for it.
    """
    from scheduler.model.texts import listed

    if timeout is not None:
        session.timeout = timeout / 1_000_000
    session.existing()
    looks = Poller(session, timeout)
    fleet_told = False
    while True:
        found = looks.take(lambda: _ends(session, ids))
        open_ids = [i for i, state in found.items() if state is None]
        if not open_ids:
            break
        if not fleet_told:
            looks.take(lambda: _tell_of_fleet(session))
            fleet_told = True
        if not looks.again():
            note(f"still not ended: {listed([str(i) for i in open_ids], 20)}")
            ctx.exit(exits.TIMED_OUT)
    rows = looks.take(lambda: _rows(session, found))
    print_rows(session, rows)
    if any(row["state"] != "success" for row in rows):
        ctx.exit(exits.FAILED)


def _ends(session: Session, ids: Sequence[int]) -> dict[int, Any]:
    from scheduler.operations.details import ends

    with session.database.read() as tx:
        return dict(ends(tx, ids))


def _tell_of_fleet(session: Session) -> None:
    with session.database.read() as tx:
        session.fleet(tx)


def _rows(session: Session, found: dict[int, Any]) -> list[dict[str, Any]]:
    from scheduler.errors import UnknownTaskError
    from scheduler.operations.details import get_task

    rows: list[dict[str, Any]] = []
    with session.database.read() as tx:
        for task_id, state in found.items():
            kind = error = None
            try:
                task = get_task(tx, task_id)
                kind, error = task.kind, task.error if state != "success" else None
                error = masks_of(tx, [kind]).view(task, {"error": error})["error"]
            except UnknownTaskError:
                pass  # retention removed it; its end is remembered
            rows.append({"id": task_id, "state": state.value, "kind": kind, "error": error})
    return rows


@click.command(name="logs")
@click.argument("task_id", metavar="ID", type=TASK_ID)
@click.option("-f", "--follow", is_flag=True, help="Go on with new output, until the task has ended.")
@click.option("--raw", is_flag=True, help="The output exactly as it was written: a terminal obeys the escapes in it.")
@reveals
@common
@prints(("attempt", "claim", "outcome", "worker", "text"))
def logs_command(session: Session, /, task_id: int, follow: bool, raw: bool, reveal: bool) -> None:
    """The output of a task's attempts, oldest first. A running attempt's output is stored every second.

    Secrets of the task's payload are hidden in it.
    """
    from scheduler.operations.details import get_task

    database = session.existing()
    if reveal:
        from scheduler.operations.masks import note_reveal

        with database.read() as tx:
            task = get_task(tx, task_id)
        note_reveal(session.desk, [task])
    looks = Poller(session, None)
    shown: dict[int, str] = {}
    last = 0
    collected: list[dict[str, Any]] = []
    while True:
        ended, entries = looks.take(lambda: _new_logs(session, task_id, shown, reveal=reveal))
        if session.output == "json":
            collected += entries
        else:
            for entry in entries:
                _print(session, entry, headed=entry["claim"] != last and (bool(last) or len(entries) > 1), raw=raw)
                last = entry["claim"]
        if ended or not follow:
            break
        looks.again()
    if session.output == "json":
        print_rows(session, collected)
    if not shown:
        with database.read() as tx:
            state = get_task(tx, task_id).state
        later = "" if state.terminal else " yet (a running attempt's output is stored every second)"
        note(f"task {task_id} ({state}) has written nothing{later}")


def _new_logs(
    session: Session, task_id: int, shown: dict[int, str], *, reveal: bool
) -> tuple[bool, list[dict[str, Any]]]:
    """Whether the task has ended, and the log text beyond ``shown``, by claim."""
    from scheduler.operations.details import attempt_logs, attempts, get_task

    with session.database.read() as tx:
        task = get_task(tx, task_id)
        ended = task.state.terminal
        texts = attempt_logs(tx, task_id, after=max(shown, default=1) - 1)
        if texts and not reveal:
            hidden = masks_of(tx, [task.kind])
            texts = [(claim, hidden.text(task, text)) for claim, text in texts]
        known = {a.claim: a for a in attempts(tx, task_id)} if texts else {}
    entries = []
    for claim, whole in texts:
        text = beyond(shown.get(claim, ""), whole)
        shown[claim] = whole
        if not text:
            continue
        attempt = known.get(claim)
        entries.append(
            {
                "attempt": attempt.number if attempt else None,
                "claim": claim,
                "outcome": attempt.outcome.value if attempt else None,
                "worker": attempt.worker if attempt else None,
                "text": text,
            }
        )
    return ended, entries


def _print(session: Session, entry: dict[str, Any], headed: bool, raw: bool) -> None:
    """Print one attempt's output, with a head if there are several attempts."""
    if session.output == "jsonl":
        print_rows(session, [entry])
        return
    if headed:
        title = f"attempt {entry['attempt']}, {entry['outcome']}, {entry['worker']}" if entry["attempt"] else "running"
        say(f"==> {title} <==")
    text = entry["text"]
    if raw:
        click.echo(text, nl=not text.endswith("\n"), color=True)  # else click leaves out colours where no terminal is
    else:
        say(text, nl=not text.endswith("\n"))
