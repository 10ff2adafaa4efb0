"""``schedctl workers``."""

from __future__ import annotations

import click

from scheduler.cli.options import common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, with_session
from scheduler.cli.views import WORKER_COLUMNS, WORKER_FIELDS, worker_row, worker_view


@click.command(name="workers")
@click.option("--all", "every", is_flag=True, help="The latest that stopped or died, too.")
@common
@with_session
def workers_command(session: Session, /, every: bool) -> None:
    """Workers: where they run, what they serve and hold, how long their lease lasts."""
    from scheduler.store.read_workers import workers

    database = session.existing()
    with database.read() as connection:
        now = database.now()
        found = workers(connection, now, every=every)
    if not any(w.claims for w in found):
        note("no worker is live")
    rows = []
    for worker in found:
        row = worker_view(worker, now)
        if session.output == "table":
            row = worker_row(worker, now) | {"kinds": ",".join(worker.kinds)}
        rows.append(row)
    print_rows(session, rows, WORKER_COLUMNS, WORKER_FIELDS)
