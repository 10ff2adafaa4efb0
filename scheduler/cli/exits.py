"""Exit statuses, and errors as the one or two lines that users read; Group, which ends with its help as an error."""

from __future__ import annotations

import os
import sys

import click

from scheduler import errors
from scheduler.cli.echo import say

DONE, FAILED, USAGE, UNKNOWN, CONFLICT, UNREACHABLE, TIMED_OUT, INTERRUPTED = 0, 1, 2, 3, 4, 5, 124, 130
_STATUS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    (
        (
            errors.UnknownTaskError,
            errors.UnknownBulkError,
            errors.UnknownScheduleError,
            errors.UnknownWorkerError,
            errors.UnregisteredKindError,
            errors.UnknownDependencyError,
        ),
        UNKNOWN,
    ),
    (
        (
            errors.DuplicateKeyError,
            errors.DuplicateScheduleError,
            errors.CycleError,
            errors.InvalidTransitionError,
        ),
        CONFLICT,
    ),
    (errors.StoreUnavailableError, UNREACHABLE),
    ((errors.ConfigError, errors.PayloadError, errors.InvalidScheduleError, UnicodeEncodeError), USAGE),
)


class NoCommandError(click.UsageError):
    """A group was called without a command; the message is the group's help."""


class CommandGroup(click.Group):
    """Prints its help as an error: click 8.1 prints it as a success, later versions raise their own error."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise NoCommandError(ctx.get_help(), ctx)
        return super().parse_args(ctx, args)


def status_of(error: BaseException) -> int:
    """The exit status for an error."""
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        return error.exit_code
    return next((status for kinds, status in _STATUS if isinstance(error, kinds)), FAILED)


def print_error(error: BaseException) -> None:
    """Print an error on stderr; with SCHEDD_DEBUG=1 the traceback too."""
    if os.environ.get("SCHEDD_DEBUG", "") not in ("", "0"):
        import traceback

        say("".join(traceback.format_exception(error)), nl=False, err=True)
        return
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return
    if isinstance(error, NoCommandError):
        say(error.format_message(), err=True)
        return
    if isinstance(error, click.UsageError):
        where = f" (see `{error.ctx.command_path} --help`)" if error.ctx is not None else ""
        text = f"{error.format_message().rstrip('.')}{_instead(error)}{where}"
    elif isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, (errors.SchedulerError, OSError)):
        text = str(error)
    elif isinstance(error, UnicodeEncodeError):  # an argument, as the system gave it
        text = f"{error.object!r:.80} is not text in UTF-8"
    else:
        message = " ".join(str(error).split())
        text = f"internal error: {type(error).__name__}: {message} (SCHEDD_DEBUG=1 shows where)"
    say(f"schedctl: {text}", err=True)


def _instead(error: click.UsageError) -> str:
    """The way that schedctl has instead of an unknown option."""
    if not isinstance(error, click.NoSuchOption):
        return ""
    if error.option_name in ("--json", "--jsonl"):
        return f"; `-o {error.option_name[2:]}` prints that"
    words = error.ctx.command.params if error.ctx is not None and not error.option_name.startswith("--") else ()
    if any("FILTER" in (one.metavar or "") for one in words if isinstance(one, click.Argument)):
        return "; a filter that begins with - follows `--`"
    return ""


def quiet_pipe() -> None:
    """Keep Python quiet at exit when the reader of stdout has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
