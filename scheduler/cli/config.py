"""``schedctl config`` and ``schedctl init``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.exits import CommandGroup
from scheduler.cli.options import common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, prints
from scheduler.errors import ConfigError, SchedulerError

if TYPE_CHECKING:
    from scheduler.config.model import Config


@click.group(name="config", cls=CommandGroup)
def config_command() -> None:
    """The settings in effect."""


@config_command.command(name="check")
@common
@prints(("setting", "value", "source"))
def check(session: Session, /) -> None:
    """Show each setting in effect and where it comes from, without passwords.

    `schedd --check` also imports the task modules and makes sources, sinks and executors, as the daemon does.
    """
    from scheduler.config import user_modules
    from scheduler.config.load import describe
    from scheduler.config.messages import warnings
    from scheduler.config.paths import settled
    from scheduler.operations.desk import parse_url

    config = session.config
    parse_url(config.store.url)
    if config.file is None:
        note("no configuration file: defaults and the environment")
    for path in user_modules.hidden(settled(config).tasks.path):
        note(user_modules.advice(path))
    rows = []
    for setting in describe(config):
        value = setting.text if session.output == "table" else setting.value
        rows.append({"setting": setting.name, "value": value, "source": setting.source})
    _put_live(session, rows)
    print_rows(session, rows)
    for name, what in warnings(config.sources, config.door):
        note(f"{name}: {what}")
    if config.console.listen is not None:
        _try_console(config)


def _try_console(config: Config) -> None:
    """Say why the console of a daemon would not start. The daemon itself starts without it."""
    from scheduler.config.paths import settled

    try:
        from scheduler.console.serve import ConsoleServer

        ConsoleServer(settled(config), str(config.console.listen), tell=note).close()
    except ImportError as error:
        note(f"[console] listen needs {error.name}: pip install 'schedd[console]'")
    except ConfigError as error:
        note(f"the console does not start: {error}")


def _put_live(session: Session, rows: list[dict[str, Any]]) -> None:
    """Put the live settings of all workers in place of what the file says, and those of kinds, keys and queues below,
    if the database answers."""
    from scheduler.model.live_settings import POOL
    from scheduler.operations.limits import records

    try:
        if session.database.missing():
            return
        with session.database.read() as tx:
            found = records(tx)
    except SchedulerError as error:
        note(f"live settings are not known: {error}")
        return
    live = {
        f"pools.{where.name}.{name}": (value, setting.source)
        for where, setting in found.items()
        if where.scope == POOL
        for name, value in setting.value.items()
    }
    for row in rows:
        if row["setting"] in live:
            value, source = live[row["setting"]]
            row |= {"value": str(value) if session.output == "table" else value, "source": source}
    rows += [
        {"setting": f"{setting.subject} {name}", "value": value, "source": setting.source}
        for where, setting in found.items()
        if where.scope != POOL
        for name, value in setting.value.items()
    ]


@click.command(name="init")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--fastapi", is_flag=True, help="With an app of FastAPI that stores tasks.")
@click.option("--django", is_flag=True, help="An app of Django; where there is no manage.py, a project around it.")
@common
@prints(("file",))
def init_command(session: Session, /, directory: Path, fastapi: bool, django: bool) -> None:
    """Write a module with two tasks, its configuration, and a test of it, into a directory.

    It refuses to overwrite anything: a file that is there already ends it before it writes.
    """
    from scheduler.operations import starter

    if fastapi and django:
        raise click.UsageError("either --fastapi or --django")
    framework = starter.Framework.FASTAPI if fastapi else starter.Framework.DJANGO if django else starter.Framework.NONE
    written = starter.write(directory, framework)
    print_rows(session, [{"file": str(directory / name)} for name in written], ("file",))
    note("next:")
    for step in [*([] if str(directory) == "." else [f"cd {directory}"]), *starter.next_steps(framework, written)]:
        note(f"  {step}")
