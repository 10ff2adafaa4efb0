"""``schedctl config``."""

from __future__ import annotations

import click

from scheduler.cli.group import Group
from scheduler.cli.options import common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, prints


@click.group(name="config", cls=Group)
def config_command() -> None:
    """The settings in effect."""


@config_command.command(name="check")
@common
@prints(("setting", "value", "source"))
def check(session: Session, /) -> None:
    """Show each setting in effect and where it comes from, without passwords."""
    from scheduler.config.model import describe
    from scheduler.store.db.urls import parse_url

    config = session.config
    parse_url(config.store.url)
    if config.file is None:
        note("no configuration file: defaults and the environment")
    rows = []
    for setting in describe(config):
        value = setting.text if session.output == "table" else setting.value
        rows.append({"setting": setting.name, "value": value, "source": setting.source})
    print_rows(session, rows)
