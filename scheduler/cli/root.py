"""The root of ``schedctl``: global options, and commands that are imported when they are used."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pkgutil import iter_modules
from typing import Any, NoReturn

import click

from scheduler.cli import exits
from scheduler.cli.echo import say
from scheduler.cli.exits import CommandGroup
from scheduler.cli.options import common
from scheduler.model.names import nearest

VARIABLE = "_SCHEDCTL_COMPLETE"  # set by a shell that asks what to complete
# name -> (module, what --help says of it, "": the command's own text); NAME_command of the module is the command
COMMANDS = {
    "status": ("status", "The store at a glance: counts, workers, problems."),
    "report": ("status", "One verdict on how things stand, with causes and next commands."),
    "list": ("tasks", "Tasks, newest first."),
    "show": ("tasks", "Everything about a task, and why it is not running."),
    "why": ("tasks", "Why tasks do not run."),
    "run": ("submit", "Schedule a command."),
    "submit": ("submit", "Schedule a task of any kind that workers have registered."),
    "cancel": ("task_verbs", "End tasks, or ask running ones to end."),
    "retry": ("task_verbs", "Run tasks again that failed or were cancelled."),
    **{
        one.name.removeprefix("verb_"): (one.name, "")
        for one in iter_modules([os.path.dirname(__file__)])
        if one.name[:5] == "verb_"
    },
    "rerun": ("task_verbs", "Run tasks again that have ended, also successes."),
    "copy": ("task_verbs", "Store a copy of a task, with other arguments."),
    "set": ("set", "Change stored tasks, and settings while daemons run."),
    "settings": ("set", "Slots, caps and rates in effect, and their sources."),
    "pause": ("queues", "Claim nothing of a queue, of a kind, or at all."),
    "resume": ("queues", "Claim again what was paused."),
    "wait": ("follow", "Wait until tasks have ended."),
    "logs": ("follow", "The output of a task's attempts."),
    "graph": ("graph", "The tasks that edges connect with a task."),
    "compare": ("graph", "A run beside the last good one."),
    "bulk": ("bulk", "Changes of many tasks, planned first and run in batches."),
    "dlq": ("dlq", "Dead letters: tasks that failed for good; replay them."),
    "cron": ("cron", "Recurring schedules."),
    "event": ("event", "Events that tasks await."),
    "alerts": ("alerts", "Alerts that fire, silences, and their messages."),
    "sources": ("messages", "Sources of messages."),
    "sinks": ("messages", "Sinks for messages."),
    "executors": ("workers", "Places where tasks run that name an executor."),
    "inbox": ("messages", "Messages that have come in."),
    "outbox": ("messages", "Messages that go out."),
    "audit": ("audit", "Changes, with their authors, times and reasons."),
    "queues": ("queues", "Queues: the tasks that wait in each, and its workers."),
    "workers": ("workers", "Workers, what they run, and their leases."),
    "worker": ("workers", "One worker: let it drain, or claim again."),
    "stats": ("stats", "How long tasks run and wait, how many end and fail."),
    "top": ("top", "Running tasks, live."),
    "metrics": ("stats", "Figures of the store for Prometheus."),
    "gc": ("upkeep", "Remove everything that has outlived its retention."),
    "db": ("db", "The database: upgrade, check, backup."),
    "config": ("config", "The settings in effect."),
    "init": ("config", "Write a first module of tasks, with its configuration and a test."),
    "service": ("service", "Run schedd as a service of systemd or launchd."),
    "doctor": ("upkeep", "Check what must always hold."),
    "console": ("console", "Pages that say what is wrong, and mend it."),
    "mcp": ("console", "Serve agents over the Model Context Protocol."),
    "completion": ("complete", "Print the script that completes commands in a shell."),
}

_ALIASES = {"executor": "executors"}  # not listed in --help
_CALLED = {"schedules": "cron list", "tasks": "list"}  # elsewhere


def _load(name: str) -> click.Command:
    module = importlib.import_module(f"scheduler.cli.{COMMANDS[name][0]}")
    found: click.Command = getattr(module, f"{name}_command")
    return found


def summaries() -> list[tuple[str, str]]:
    """Each command, and what ``--help`` says of it."""
    return [(name, text or _load(name).get_short_help_str(100)) for name, (_, text) in COMMANDS.items()]


class Root(CommandGroup):
    """Imports a command's module only when the command is used; turns errors into lines and exit statuses."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = _ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        found = _load(cmd_name)
        if VARIABLE in os.environ:  # a shell asks what to complete
            from scheduler.cli.complete import attach

            attach(found)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and args[0] not in _ALIASES and args[0][:1].isalnum():
            near = self._meant(ctx, args[0])
            ctx.fail(
                f"No such command {args[0]!r}" + (f"; did you mean {' or '.join(map(repr, near))}?" if near else "")
            )
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, name: str) -> list[str]:
        """Suggest a command: one of a group (``cron pause``), other tools' name for it, or a similar spelling."""
        groups = {group: self.get_command(ctx, group) for group in COMMANDS}
        below = [
            f"{g} {name}"
            for g, command in groups.items()
            if isinstance(command, click.Group) and name in command.commands
        ]
        called = [_CALLED[name]] if name in _CALLED else []
        return below or called or nearest(name, COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(summaries())

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        try:
            result = super().main(args, prog_name or "schedctl", complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
            status = result if isinstance(result, int) else exits.DONE
        except BrokenPipeError:
            exits.quiet_pipe()
            status = exits.FAILED
        except (Exception, KeyboardInterrupt) as error:
            exits.print_error(error)
            status = exits.status_of(error)
        sys.exit(status)


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from scheduler.build import running

        say(f"schedctl {running()}")
        ctx.exit()


SETTINGS: Mapping[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Root, name="schedctl", context_settings=dict(SETTINGS))
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@common
def root() -> None:
    """Look at schedd's tasks and change them.

    It works on the database itself, so it answers even when no daemon runs. Data goes to stdout, messages to stderr.

    Exit status: 0 done; 1 the operation or the awaited task failed; 2 usage; 3 no such thing; 4 conflict;
    5 database unreachable; 124 wait timed out; 130 interrupted.
    """
