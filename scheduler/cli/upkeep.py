"""``schedctl doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scheduler.cli import exits
from scheduler.cli.options import acts, common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, prints

if TYPE_CHECKING:
    from scheduler.operations.upkeep import Finding

_COLUMNS = ("level", "check", "text")


@click.command(name="doctor")
@click.option("--repair", is_flag=True, help="First mend every problem that can be mended, and say what was done.")
@click.option("--full", is_flag=True, help="Look at every row. It takes minutes beside many millions of tasks.")
@click.option("--install", is_flag=True, help="Check the installation instead: the store is not opened.")
@acts
@common
@prints((*_COLUMNS, "tasks"))
@click.pass_context
def doctor_command(ctx: click.Context, session: Session, /, repair: bool, full: bool, install: bool) -> None:
    """Check what must always hold. Exit status 1 if there is a problem.

    Some checks look at the newest 20,000 tasks only, and `extent` says which; --full looks at all.

    --install looks at versions, extras, names that hide schedd's, rights, clock, SQLite, disk and descriptors.

    The command also connects to the sources and sinks of the configuration; one that it cannot reach is no problem.
    """
    from scheduler.operations import installation
    from scheduler.operations.upkeep import PROBLEM

    if install and (repair or full):
        raise click.UsageError("--install looks at no store: leave --repair and --full out")
    found = installation.examine(session.config) if install else _examine(session, repair, full)
    rows = [{"level": f.level, "check": f.check, "text": f.text, "tasks": list(f.tasks)} for f in found]
    print_rows(session, rows, _COLUMNS, whole=True)
    if any(f.level == PROBLEM for f in found):
        ctx.exit(exits.FAILED)


def _examine(session: Session, repair: bool, full: bool) -> list[Finding]:
    from scheduler.config.paths import settled
    from scheduler.operations import installation, upkeep
    from scheduler.operations.upkeep import NOTE, OK, PROBLEM, Finding

    counts = session.config.metrics.rollups
    found, repaired = upkeep.examine(session.desk, full=full, mend=repair, counts=counts)
    if repair and repaired is None:
        note("nothing is repaired while a table is missing")
    for line in repaired or ():
        note(line)
    if session.config.sources or session.config.sinks:
        from scheduler.messages.service import examine

        for one in examine(session.config):
            text = one.text if one.reached else f"it cannot be reached from here: {one.text}"
            level = OK if one.ok else PROBLEM if one.reached else NOTE
            found.append(Finding(one.what, level, text))
    hidden = [one for one in installation.names(settled(session.config)) if one.level != OK]
    return [*found, *(one._replace(level=NOTE) for one in hidden)]
