"""``schedctl completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_SCHEDCTL_COMPLETE"


@click.command(name="completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion_command(shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    For bash put  eval "$(schedctl completion bash)"  into ~/.bashrc; zsh likewise; for fish:
    schedctl completion fish > ~/.config/fish/completions/schedctl.fish
    """
    from scheduler.cli.root import root

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(root, {}, "schedctl", VARIABLE)
    # click's own source() would first start a bash to ask its version
    click.echo(made.source_template % made.source_vars())
