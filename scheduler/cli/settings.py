"""``schedctl settings``: slots, caps and rates in effect."""

from __future__ import annotations

import click

from scheduler.cli.options import common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, prints


@click.command(name="settings")
@common
@prints(("setting", "value", "source"))
def settings_command(session: Session, /) -> None:
    """Show the slots of each live worker, and the caps and rates of kinds, keys and queues, as they are in effect.

    SOURCE names where a setting comes from: a program, a configuration, or `schedctl set`, by whom and since when.
    """
    from scheduler.operations.limits import in_effect

    print_rows(session, [one._asdict() for one in in_effect(session.desk)])
