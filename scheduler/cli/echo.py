"""Prepares the streams of the process, so that every output can be printed."""

from __future__ import annotations

import io
import os
import sys

import click

from scheduler.model.texts import printable


def ready() -> None:
    """Replace closed streams, and print characters that the encoding lacks as escapes."""
    for fd in (0, 1, 2):  # the number of a closed one would become the database's
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout if sys.stdout is not None else _nowhere(1)
    sys.stderr = sys.stderr if sys.stderr is not None else _nowhere(2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _nowhere(fd: int) -> io.TextIOWrapper:
    return open(fd, "w", encoding="utf-8", closefd=False)


def is_utf8() -> bool:
    """Whether stdout can print any character."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def say(text: object = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a line without characters that control a terminal, since it may contain a task's text."""
    click.echo(printable(str(text)), nl=nl, err=err)
