"""What ``manage.py schedd`` and ``manage.py schedctl`` share: the project's settings, handed on to schedd."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from scheduler.django import options, stores


class Handover(BaseCommand):
    """A command whose arguments are another program's. ``--backend``: which of several in TASKS."""

    requires_system_checks: Any = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Hand over what is not Django's own."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for name in ("--settings", "--pythonpath", "--backend"):
            parser.add_argument(name)
        known, rest = parser.parse_known_args(argv[2:])
        try:
            self.hand_over(rest, known.backend)
        except CommandError as error:
            print(f"{argv[1]}: {error}", file=sys.stderr)
            sys.exit(2)

    def add_arguments(self, parser: Any) -> None:
        """For call_command()."""
        parser.add_argument("--backend")
        parser.add_argument("args", nargs="*")

    def handle(self, *args: str, **given: Any) -> None:
        """Run the command; it ends with SystemExit."""
        self.hand_over(list(args), given.get("backend"))

    def hand_over(self, argv: list[str], backend: str | None) -> None:
        """Run the other program. Raises CommandError, SystemExit."""
        raise NotImplementedError

    def prepare(self, name: str, argv: list[str], backend: str | None, modules: list[str]) -> None:
        """Put the settings where schedd looks for them. What is in the environment already stands above them."""
        found = {one.alias: one for one in stores.backends()}
        if backend is not None and backend not in found:
            raise CommandError(f"TASKS has no backend {backend!r} of schedd's; there are {', '.join(found) or 'none'}")
        chosen = found[backend] if backend is not None else next(iter(found.values()), None)
        try:
            given = {} if chosen is None else chosen.options
            if options.url_of(given) is None and options.is_memory(options.database_of(given)):
                raise CommandError("the database lies in memory, where no other process sees it: name a file")
            for variable, value in options.environment(given, modules).items():
                os.environ.setdefault(variable, value)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        os.environ.setdefault("SCHEDD_TASKS__PATH", os.path.dirname(os.path.abspath(sys.argv[0])))
        connections.close_all()
        sys.argv = [name, *argv]
