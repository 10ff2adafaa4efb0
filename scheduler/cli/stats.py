"""``schedctl stats`` and ``schedctl metrics``: figures for people, and for Prometheus."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.echo import say
from scheduler.cli.options import AGO, common
from scheduler.cli.output import print_rows, time
from scheduler.cli.session import Session, note, note_kind, prints
from scheduler.errors import SchedulerError
from scheduler.system import files

if TYPE_CHECKING:
    from scheduler.client.stats import KindStats


HOUR = 3_600_000_000  # microseconds
FIELDS = (
    *("kind", "since", "until", "attempts", "outcomes", "throughput", "failure_rate"),
    *("run_mean", "run_p50", "run_p95", "run_p99"),
    *("waited", "wait_mean", "wait_p50", "wait_p95", "wait_p99"),
)
_UNITS = ((1, 0.001, "ms"), (120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h"), (float("inf"), 86_400, "d"))
_COLUMNS = ("kind", "attempts", "per_min", "failed", "p50", "p95", "p99", "wait_p50", "wait_p95")


FILE_MODE = 0o644  # the reader is another user


@click.command(name="stats")
@click.argument("kind", metavar="[KIND]", required=False)
@click.option("--queue", metavar="Q", help="Only attempts of this queue's tasks.")
@click.option(
    "--since",
    type=AGO,
    metavar="T",
    help="Since this time (with its zone), or this long ago, such as 2h; 1h by default.",
)
@click.option("--until", type=AGO, metavar="T", help="Before this time, likewise.")
@common
@prints(FIELDS)
def stats_command(
    session: Session, /, kind: str | None, queue: str | None, since: int | None, until: int | None
) -> None:
    """How long tasks run and wait, how many end a minute, and how many fail; by kind.

    P50, P95 and P99: half, 95 and 99 percent of the attempts took at most that long. WAIT is the time from the
    moment when only a worker was missing until the start. Workers write their numbers every ten seconds; the last
    row is of all kinds.
    """
    from scheduler.client.stats import make_stats
    from scheduler.model.texts import rfc3339
    from scheduler.operations.kinds import stats

    database = session.existing()
    with database.read() as tx:
        now = tx.now
        begin, end = _instant(since, now, now - HOUR), _instant(until, now, now)
        if end <= begin:
            raise click.UsageError("--until must be after --since")
        record = stats(tx, begin, end, kind=kind, queue=queue)
        if not record.kinds:
            note_kind(tx, kind)
    found = make_stats(record)
    span = {"since": time(record.since), "until": time(record.until)}
    shown = [*found.kinds, *([found.total] if len(found.kinds) > 1 else [])]
    views = [{**stats_view(one), **span} for one in shown]
    if session.output == "table" and session.columns is None:
        ends = [rfc3339(at, exact=False) for at in (record.since, record.until)]
        note(f"from {ends[0]} to {ends[1]}" if views else f"no attempt ended since {span['since']}")
        if views:
            print_rows(session, [_row(one) for one in shown], _COLUMNS)
    else:
        print_rows(session, views, FIELDS)


def _instant(given: int | None, now: int, default: int) -> int:
    """``given`` of ``AGO`` as an instant: 0 or less is how long ago."""
    if given is None:
        return default
    return now + given if given <= 0 else given


def stats_view(one: KindStats) -> dict[str, Any]:
    """The numbers of one kind, for programs; times in seconds, ``throughput`` a second."""
    from scheduler.client.json_views import fields

    return {
        **fields(one, "kind", "attempts", "outcomes", "throughput", "failure_rate"),
        **{f"run_{name}": getattr(one.run, name) for name in ("mean", "p50", "p95", "p99")},
        "waited": one.wait.count,
        **{f"wait_{name}": getattr(one.wait, name) for name in ("mean", "p50", "p95", "p99")},
    }


def _row(one: KindStats) -> dict[str, Any]:
    return {
        "kind": one.kind or "all",
        "attempts": one.attempts,
        "per_min": f"{one.throughput * 60:.3g}" if one.throughput * 60 < 100 else f"{one.throughput * 60:.0f}",
        "failed": "-" if one.failure_rate is None else percent(one.failure_rate),
        "p50": duration(one.run.p50),
        "p95": duration(one.run.p95),
        "p99": duration(one.run.p99),
        "wait_p50": duration(one.wait.p50),
        "wait_p95": duration(one.wait.p95),
    }


def percent(share: float) -> str:
    """A share as a percentage; never 0 % of some, nor 100 % of not all."""
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{min(share * 100, 99.9):.1f}%" if 0 < share < 1 else f"{share * 100:.0f}%"


def duration(seconds: float | None) -> str:
    """A span to two or three digits: 0.05ms, 120ms, 1.5s, 12m, 3.2h."""
    if seconds is None:
        return "-"
    unit, name = next((unit, name) for most, unit, name in _UNITS if seconds < most)
    number = seconds / unit
    return f"{number:.0f}{name}" if number >= 100 else f"{number:.2g}{name}" if number < 10 else f"{number:.3g}{name}"


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
    import tempfile

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
