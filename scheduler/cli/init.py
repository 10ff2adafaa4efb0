"""``schedctl init``."""

from __future__ import annotations

from pathlib import Path

import click

from scheduler.cli.options import common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, prints


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
