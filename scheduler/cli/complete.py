"""What a shell completes beside names of commands and options: kinds, queues, schedules, states, columns, ids.

It is asked at each press of a key, so it gives up soon, and says nothing of what goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from scheduler.cli.session import Session

if TYPE_CHECKING:
    from scheduler.operations.desk import Tx


PATIENCE_S = 1.0
MANY = 100  # ids, queues
Source = Callable[[click.Context, str], Iterable[tuple[str, str | None]]]
_LISTS = frozenset({"kind", "queue", "states", "columns"})
_OF_SCHEDULES = frozenset({("cron", "name"), ("cron", "names")})


@click.command(name="completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion_command(shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    For bash put  eval "$(schedctl completion bash)"  into ~/.bashrc; zsh likewise; for fish:
    schedctl completion fish > ~/.config/fish/completions/schedctl.fish
    """
    from scheduler.cli.root import VARIABLE, root

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(root, {}, "schedctl", VARIABLE)
    # click's own source() would first start a bash to ask its version
    click.echo(made.source_template % made.source_vars())


def attach(command: click.Command, group: str = "") -> None:
    """Give the parameters of a command, and of those below it, what they complete."""
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        attach(below, command.name or "")
    for param in command.params:
        source = _schedules if (group, param.name) in _OF_SCHEDULES else _SOURCES.get(param.name or "")
        if source is not None:
            param._custom_shell_complete = _completer(source, listed=param.name in _LISTS)


def _completer(
    source: Source, *, listed: bool
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if listed else ("", "", incomplete)
        try:
            found = list(source(ctx, last))
        except Exception:  # a key was pressed: there is no place for an error
            return []
        items = [(name, text) for name, text in found if name.lower().startswith(last.lower())]
        return [CompletionItem(f"{before}{comma}{name}", help=text) for name, text in items]

    return complete


def _read(ctx: click.Context, look: Callable[[Tx], Sequence[Any]]) -> Sequence[Any]:
    session = ctx.find_root().ensure_object(Session)
    from scheduler.operations.desk import open_desk

    database = open_desk(session.config.store.url).database
    try:
        if database.missing():
            return []
        with database.within(PATIENCE_S), database.read() as tx:
            return look(tx)
    finally:
        database.dispose()


def _kinds(ctx: click.Context, _start: str) -> Iterable[tuple[str, str | None]]:
    from scheduler.operations.kinds import kind_names

    return [(name, None) for name in _read(ctx, kind_names)]


def _queues(ctx: click.Context, _start: str) -> Iterable[tuple[str, str | None]]:
    from scheduler.operations.kinds import queue_names

    return [(name, None) for name in _read(ctx, lambda tx: queue_names(tx, MANY))]


def _schedules(ctx: click.Context, _start: str) -> Iterable[tuple[str, str | None]]:
    from scheduler.operations.schedules import records

    return [(name, text) for name, text in _read(ctx, lambda tx: [(r.name, r.kind) for r in records(tx)])]


def _ids(ctx: click.Context, start: str) -> Iterable[tuple[str, str | None]]:
    from scheduler.operations.kinds import ids_from

    found = _read(ctx, lambda tx: ids_from(tx, start, MANY))
    return [(str(task_id), f"{kind} {state}") for task_id, kind, state in found]


def _states(_ctx: click.Context, _start: str) -> Iterable[tuple[str, str | None]]:
    from scheduler.model.state import SIMPLE_NAMES, TaskState

    return [*((state.value, None) for state in TaskState), *((name, "short name") for name in SIMPLE_NAMES)]


def _columns(ctx: click.Context, _start: str) -> Iterable[tuple[str, str | None]]:
    fields = getattr(ctx.command.callback, "fields", ())
    return [(name, None) for name in (() if callable(fields) else fields)]


_SOURCES: dict[str, Source] = {
    "kind": _kinds,
    "queue": _queues,
    "states": _states,
    "columns": _columns,
    "ids": _ids,
    "task_id": _ids,
}
