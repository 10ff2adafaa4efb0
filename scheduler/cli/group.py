"""Group: without a command it prints its help and fails, in every version of click."""

from __future__ import annotations

import click


class NoCommandError(click.UsageError):
    """A group was called without a command; the message is the group's help."""


class Group(click.Group):
    """Prints its help as an error: click 8.1 prints it as a success, later versions raise their own error."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise NoCommandError(ctx.get_help(), ctx)
        return super().parse_args(ctx, args)
