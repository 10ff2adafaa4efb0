"""``manage.py schedctl``: schedd's command, on this project's store."""

from __future__ import annotations

from scheduler.django.commands import Handover


class Command(Handover):
    """Takes the commands and options of ``schedctl``."""

    help = "Look at and steer the tasks of this project (schedctl)."

    def hand_over(self, argv: list[str], backend: str | None) -> None:
        """Run one command of schedctl."""
        from scheduler.cli import main

        self.prepare("schedctl", argv, backend, [])
        main()
