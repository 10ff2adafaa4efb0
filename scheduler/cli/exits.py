"""Exit statuses, and errors as the one or two lines that users read."""

from __future__ import annotations

import os
import sys
import traceback

import click
from click.exceptions import NoArgsIsHelpError

from scheduler import errors

DONE, FAILED, USAGE, UNKNOWN, CONFLICT, UNREACHABLE, TIMED_OUT, INTERRUPTED = 0, 1, 2, 3, 4, 5, 124, 130

_STATUS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    (
        (
            errors.UnknownTaskError,
            errors.UnknownScheduleError,
            errors.UnknownWorkerError,
            errors.UnregisteredKindError,
            errors.UnknownDependencyError,
        ),
        UNKNOWN,
    ),
    ((errors.DuplicateKeyError, errors.CycleError, errors.InvalidTransitionError), CONFLICT),
    (errors.StoreUnavailableError, UNREACHABLE),
    ((errors.ConfigError, errors.PayloadError, errors.InvalidScheduleError, UnicodeEncodeError), USAGE),
)


def status_of(error: BaseException) -> int:
    """The exit status for an error."""
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        return error.exit_code
    return next((status for kinds, status in _STATUS if isinstance(error, kinds)), FAILED)


def tell(error: BaseException) -> None:
    """Say on stderr what went wrong; with SCHEDD_DEBUG=1 the traceback too."""
    if os.environ.get("SCHEDD_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
        return
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return
    if isinstance(error, NoArgsIsHelpError):  # its message is the help of a group without a command
        click.echo(error.format_message(), err=True)
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
        said = " ".join(str(error).split())
        text = f"internal error: {type(error).__name__}: {said} (SCHEDD_DEBUG=1 shows where)"
    click.echo(f"schedctl: {text}", err=True)


def _instead(error: click.UsageError) -> str:
    """What others call ``--json``."""
    if isinstance(error, click.NoSuchOption) and error.option_name in ("--json", "--jsonl"):
        return f"; `-o {error.option_name[2:]}` prints that"
    return ""


def quiet_pipe() -> None:
    """The reader of our output is gone; keep Python from complaining about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
