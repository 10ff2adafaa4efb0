"""``schedctl doctor``."""

from __future__ import annotations

import click

from scheduler.cli import exits
from scheduler.cli.options import acts, common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, prints

_COLUMNS = ("level", "check", "text")


@click.command(name="doctor")
@click.option("--repair", is_flag=True, help="First mend every problem that can be mended, and say what was done.")
@click.option("--full", is_flag=True, help="Look at every row. It takes minutes beside many millions of tasks.")
@acts
@common
@prints((*_COLUMNS, "tasks"))
@click.pass_context
def doctor_command(ctx: click.Context, session: Session, /, repair: bool, full: bool) -> None:
    """Check what must always hold. Exit status 1 if there is a problem.

    Some checks look at the newest 100,000 tasks only, and `extent` says which; --full looks at all.

    The command also connects to the sources and sinks of the configuration; one that it cannot reach is no problem.
    """
    from scheduler.build import running
    from scheduler.config import user_modules
    from scheduler.config.paths import settled
    from scheduler.errors import StoreUnavailableError
    from scheduler.store.admin import doctor as checks
    from scheduler.store.admin.doctor import Finding
    from scheduler.store.admin.doctor_repair import repair as repairs
    from scheduler.store.admin.surroundings import check_surroundings
    from scheduler.store.db.migrate import MissingTablesError

    database = session.existing()
    reading = database.read
    try:
        database.look()
    except MissingTablesError:
        reading = database.read_damaged
        if repair:
            note("nothing is repaired while a table is missing")
            repair = False
    if repair:
        done = session.write(lambda tx: repairs(tx, counts=session.config.metrics.rollups))
        for line in done or ["nothing that this could repair"]:
            note(line)
    found: list[Finding] = []
    reached = False
    try:
        with reading() as tx:
            reached = True
            found += check_surroundings(database, tx, running())
            found += checks.check(tx, full=full)
    except StoreUnavailableError as error:
        if not reached:
            raise
        found.append(checks.not_checked(database, error))
    if session.config.sources or session.config.sinks:
        from scheduler.messages.service import examine

        for one in examine(session.config):
            text = one.text if one.reached else f"it cannot be reached from here: {one.text}"
            level = checks.OK if one.ok else checks.PROBLEM if one.reached else checks.NOTE
            found.append(Finding(one.what, level, text))
    for path in user_modules.hidden(settled(session.config).tasks.path):
        found.append(Finding("task modules", checks.NOTE, user_modules.advice(path)))
    rows = [{"level": f.level, "check": f.check, "text": f.text, "tasks": list(f.tasks)} for f in found]
    print_rows(session, rows, _COLUMNS, whole=True)
    if any(f.level == checks.PROBLEM for f in found):
        ctx.exit(exits.FAILED)
