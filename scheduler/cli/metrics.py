"""``schedctl metrics``: figures of the store as Prometheus reads them."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import click

from scheduler.cli.options import common
from scheduler.cli.session import Session, prints
from scheduler.cli.streams import say
from scheduler.errors import SchedulerError
from scheduler.system import files

FILE_MODE = 0o644  # the reader is another user


@click.command(name="metrics")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Replace this file, in one piece: NAME.prom for node_exporter's textfile collector.",
)
@common
@prints(())
def metrics_command(session: Session, /, file: Path | None) -> None:
    """Print figures of the store as text for Prometheus: tasks, queues, dead letters, problems, workers.

    The figures are of the whole store, so one reader of a fleet is enough. Each daemon's own counts are at its
    [metrics] listen. No daemon need run.
    """
    from scheduler.telemetry import prometheus
    from scheduler.telemetry.store_figures import read_figures

    if session.output != "table":
        raise click.UsageError("the figures are printed as text for Prometheus only, without --output")
    prometheus.require("schedctl metrics")
    database, config = session.existing(), session.config
    kept = config.retention.failed if config.retention.dead is None else config.retention.dead
    expiry = config.alerts.rules.dead_letters_expiring.within
    with database.read() as tx:
        found = read_figures(tx, dead_retention=kept, expiry=expiry)
    text, _ = prometheus.render(prometheus.make_registry(lambda: found, process=False))
    if file is None:
        say(text.decode(), nl=False)
    else:
        write_whole(file, text)


def write_whole(path: Path, text: bytes) -> None:
    """Replace a file at once, so that no reader sees a part of it. Raises SchedulerError if it cannot be written."""
    try:
        number, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        try:
            with open(number, "wb") as file:
                file.write(text)
                files.set_mode(file.fileno(), made, FILE_MODE)
            os.replace(made, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(made)
            raise
    except OSError as error:
        raise SchedulerError(f"{path} cannot be written: {error.strerror or error}") from error
