"""``manage.py schedd``: the daemon, with the project's settings and the tasks of its apps."""

from __future__ import annotations

import sys

from scheduler.django.commands import Handover


class Command(Handover):
    """Takes the options of ``schedd``."""

    help = "Run the tasks of this project (schedd's daemon, in the foreground)."

    def hand_over(self, argv: list[str], backend: str | None) -> None:
        """Run the daemon until it is stopped."""
        from scheduler.daemon import run
        from scheduler.django import options, worker

        options.keep_one_log()
        self.prepare("schedd", argv, backend, [worker.__name__, *worker.own_types()])
        sys.exit(run())
