"""CommandTask: runs a program."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from scheduler import PermanentError, Task, TaskTimeout
from scheduler.tasks.command.process import CommandFailed, CommandOutput, Process
from scheduler.tasks.files.paths import directory_within
from scheduler.tasks.settings import section

if TYPE_CHECKING:
    from scheduler import Context

CANCEL_CHECK_EVERY = 0.1  # seconds between checks for a cancel
HEARTBEAT_EVERY = 5.0  # seconds between heartbeats while output comes

# Variables for the daemon alone: its settings (the database's password among them), its credentials, and its socket of
# systemd.
_PRIVATE = {"CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}
_PRIVATE |= {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}


class CommandTask(Task):
    """Runs a program, without a shell unless asked, and ends with its exit status.

    argv: the program and its arguments. shell: then ``argv`` is one text, run by ``/bin/sh -c``. env: added
    to the daemon's environment (without the daemon's own settings and credentials). cwd: an absolute path; by
    default the first of ``[command] roots``, or the daemon's own. timeout: seconds for one attempt.
    permanent_exit_codes: exit codes after which no further attempt is made. grace: seconds between SIGTERM
    and SIGKILL when it is ended early.

    The result is ``{"exit_code": 0, "output_tail": ..., "output_bytes": ...}``; stdout and stderr go to the
    attempt's log, as one stream. stdin is empty. Whatever the program started ends with it, background
    processes too, and with the daemon, even when that is killed.

    Permanent failures: commands are not enabled; the program is not found or not executable; the working
    directory is missing or not allowed; arguments too long; an exit code of ``permanent_exit_codes``.
    Transient failures: any other exit code, death by a signal, the timeout, a system out of processes or
    memory. A program may not be safe to run twice, so there is no retry unless the task asks for it.

    Settings: ``[command] enabled`` (off by default), ``[command] roots`` (where it may run; empty: anywhere).
    """

    argv: Annotated[list[str], msgspec.Meta(min_length=1)]
    shell: bool = False
    env: dict[str, str] = msgspec.field(default_factory=dict)
    cwd: str | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    permanent_exit_codes: list[Annotated[int, msgspec.Meta(ge=1, le=255)]] = msgspec.field(default_factory=list)
    grace: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ValueError("argv must begin with the program to run")
        if self.shell and len(self.argv) != 1:
            raise ValueError("with shell=True argv must be a list of one text, the command line")
        for name in self.env:
            if not name or "=" in name:
                raise ValueError(f"{name!r} cannot be the name of an environment variable")
        if any("\0" in text for text in (*self.argv, *self.env, *self.env.values(), self.cwd or "")):
            raise ValueError("argv, env and cwd cannot contain NUL characters")
        if self.cwd is not None and not os.path.isabs(self.cwd):
            raise ValueError(f"cwd must be an absolute path, not {self.cwd!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError("timeout must be more than 0 seconds")
        if not 0 <= self.grace <= 3600:
            raise ValueError("grace must be from 0 to 3600 seconds")
        if not all(1 <= code <= 255 for code in self.permanent_exit_codes):
            raise ValueError("permanent_exit_codes must be from 1 to 255")

    def run(self, ctx: Context) -> dict[str, Any]:
        if sys.platform == "win32":
            raise PermanentError("commands need Linux or macOS: on Windows nothing ends all that one has started")
        settings = section(ctx.settings, "command")
        if settings.get("enabled") is not True:
            raise PermanentError(
                "commands are not allowed here; to allow them, put  enabled = true  in the section [command] "
                "of the daemon's configuration"
            )
        roots = settings.get("roots") or ()
        cwd = directory_within(self.cwd, roots, "[command] roots")
        argv = ["/bin/sh", "-c", self.argv[0]] if self.shell else self.argv
        output = CommandOutput(ctx.capture)
        ctx.check_cancelled()
        try:
            confined = bool(roots)
            with Process(argv, self._environment(ctx), cwd, self.grace, output.feed, confined=confined) as process:
                self._watch(ctx, process, output)
        finally:
            output.close()
        return self._result(ctx, process, output)

    def _environment(self, ctx: Context) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _PRIVATE and not (name.startswith("SCHEDD_") and "__" in name)
        }
        return {**kept, "SCHEDD_TASK_ID": str(ctx.id), "SCHEDD_TASK_ATTEMPT": str(ctx.attempt), **self.env}

    def _watch(self, ctx: Context, process: Process, output: CommandOutput) -> None:
        until = time.monotonic() + self.timeout if self.timeout is not None else None
        beat, seen = time.monotonic(), 0
        while process.pump(CANCEL_CHECK_EVERY):
            if process.ended:
                continue  # it has its status; ending what it left behind takes the grace period at most
            ctx.check_cancelled()
            now = time.monotonic()
            if until is not None and now >= until:
                raise TaskTimeout(f"{self._name} ran longer than its timeout of {self.timeout:g} s and was ended")
            if output.size > seen and now >= beat + HEARTBEAT_EVERY:
                beat, seen = now, output.size
                ctx.heartbeat()

    def _result(self, ctx: Context, process: Process, output: CommandOutput) -> dict[str, Any]:
        code = process.exit_code
        if code == 0:
            return {"exit_code": 0, "output_tail": output.tail, "output_bytes": output.size}
        if process.signal is not None:
            how = f"was ended by signal {_signal_name(process.signal)}"
        elif code is not None:
            how = f"ended with exit code {code}"
        else:
            how = "was lost: its supervising process was killed"
        text = f"{self._name} {how}" + (f"; its last words: {output.last_line}" if output.last_line else "")
        failed: Any = PermanentError(text, status=code) if code in self.permanent_exit_codes else CommandFailed(text)
        # Commands fail in one place of the code. What runs, and what for, is what tells their causes apart.
        failed.schedd_cause = f"{self.argv[0]} {ctx.schedule or ctx.key} {how}"
        raise failed

    @property
    def _name(self) -> str:
        """The command's name in an error, without its arguments, which may contain passwords."""
        return "the shell command" if self.shell else repr(self.argv[0])


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
