"""Every command of ``schedctl``, as a line that can be given to a database with a task 1, a schedule and an event."""

from __future__ import annotations

from collections.abc import Iterator

import click

READING = (
    "status",
    "list",
    "show 1",
    "show 1 1",
    "why 1",
    "wait 1 --timeout 0",
    "logs 1",
    "graph 1",
    "compare 1",
    "dlq list",
    "dlq list --each",
    "dlq show 1",
    "cron list",
    "cron next nightly",
    "cron runs nightly",
    "cron forecast",
    "event list",
    "queues",
    "workers",
    "gc --dry-run",
    "db check",
    "config check",
    "settings",
    "audit",
    "alerts list",
    "alerts history",
    "sources list",
    "sinks list",
    "executors list",
    "inbox list",
    "outbox list",
    "stats",
    "top --once",
    "metrics",
    "bulk list",
    "bulk show 1",
    "doctor",
    "doctor --full",
    "doctor --install",
    "service status",
    "report health",
)
CHANGING = (
    "run true",
    "submit no-such-kind",
    "cancel 1",
    "retry 1",
    "uncancel 1",
    "rerun 1",
    "copy 1",
    "set task 1 --priority low",
    "set pool high --slots 2",
    "set kind a --max-concurrency 2",
    "set key a b --max-concurrency 2",
    "set queue a --max-concurrency 2",
    "pause --all",
    "resume --all",
    "bulk plan cancel --kind a",
    "bulk run 1",
    "bulk stop 1",
    "bulk undo 1",
    "dlq replay 1",
    "dlq replay-all",
    "dlq purge --older-than 1d --yes",
    "cron add a @daily true",
    "cron from-apscheduler sqlite:////dev/null",
    "cron import /dev/null",
    "cron sync /dev/null",
    "cron pause nightly",
    "cron resume nightly",
    "cron trigger nightly",
    "cron backfill nightly --from 2026-01-01T00:00:00Z --to 2026-01-01T00:01:00Z",
    "cron cancel nightly",
    "cron delete nightly",
    "event emit paid",
    "alerts test",
    "alerts silence dead_letters --for 1h",
    "alerts unsilence 1",
    "sources check",
    "sources pause orders",
    "sources resume orders",
    "sources redrive orders",
    "inbox release orders",
    "sinks check",
    "executors check",
    "sinks pause shop",
    "sinks resume shop",
    "worker drain 1",
    "worker resume 1",
    "worker restart 1",
    "gc",
    "doctor --repair",
    "db upgrade",
    "db upgrade --dry-run",
    "db backup",
    "db copy --to-config other.toml",
    "db export -",
    "db import -",
    "completion bash",
    "init /dev/null/nowhere",
    "mcp --allow nosuch",
    "service install --user --dry-run",
    "service uninstall --help",
)
EVERY = READING + CHANGING


def leaves(command: click.Command, name: str = "") -> Iterator[str]:
    """The names of all commands below this one, such as ``cron list``."""
    if not isinstance(command, click.Group):
        yield name
        return
    context = click.Context(command)
    for below in command.list_commands(context):
        found = command.get_command(context, below)
        assert found is not None
        yield from leaves(found, f"{name} {below}".strip())
