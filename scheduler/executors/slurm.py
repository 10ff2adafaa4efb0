"""The executor ``slurm``: jobs are batch jobs of a Slurm cluster, asked for by its own commands.

Each job has a directory of its name, in a file system that the daemons and the nodes share: ``env`` has the job's
environment, and only the user may read it; ``log`` has what the job wrote. A job's handle is its name: Slurm gives a
number twice after a controller has lost what it had accepted. A job is forgotten once its directory is gone.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from scheduler.errors import ConfigError
from scheduler.executors import slurm_parse
from scheduler.executors.job_files import explained, tail_of, write_private
from scheduler.executors.ports import (
    Capabilities,
    ExecutorError,
    Finding,
    Job,
    PlacementPhase,
    Refused,
    Seen,
    Submitted,
)
from scheduler.system.processes import user_id

WARNING_S = 60  # before a job's time is over it gets SIGTERM, and up to as long earlier: Slurm's clock is coarse
KEPT_S = 86_400.0  # a directory without a job that Slurm knows
_TIDY_S = 3_600.0  # between two looks for those
_COMMAND_S = 30.0  # that a command may take
_NAMES_AT_ONCE = 500  # names in a command line
_BATCH_SCRIPT = """#!/bin/sh
set -a
. {env} || exit 71
set +a
exec {command}
"""
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")
_OF_COMMANDS = ("SBATCH_", "SCANCEL_", "SINFO_", "SLURM_", "SQUEUE_")  # variables that would change what commands do


class SlurmExecutor:
    """Jobs of a Slurm cluster. See the module."""

    capabilities = Capabilities(names_unique=True, has_logs=True)

    class Settings(msgspec.Struct, frozen=True, kw_only=True):
        """``directory``: of the jobs' files, shared with the nodes, for this executor of this store alone.
        ``defaults``: ``executor_options`` of tasks that do not have them. ``environment``: names of variables of the
        daemon that jobs get, too. ``slurm_conf``: instead of what ``SLURM_CONF`` or Slurm itself says."""

        directory: str
        defaults: dict[str, Any] = msgspec.field(default_factory=dict)
        environment: tuple[str, ...] = ()
        slurm_conf: str | None = None

    def __init__(self, name: str, settings: Settings) -> None:
        self._place = Path(settings.directory).expanduser()
        if not self._place.is_absolute() or not re.fullmatch(r"[^%\\\x00-\x1f]+", str(self._place)):
            raise ConfigError(
                f"executors.{name}.directory must be an absolute path without % and \\, not {settings.directory!r}"
            )
        wrong = slurm_parse.wrong_option(settings.defaults)
        if wrong is not None:
            raise ConfigError(f"executors.{name}.defaults: {wrong}")
        bad = next((one for one in settings.environment if not slurm_parse.is_variable(one)), None)
        if bad is not None:
            raise ConfigError(f"executors.{name}.environment: {bad!r:.80} is not the name of a variable")
        self._defaults = settings.defaults
        self._passed_on = {*_PASSED_ON, *settings.environment}
        self._conf = settings.slurm_conf
        self._tidied = -math.inf

    # The port

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        """See :class:`scheduler.executors.ports.Executor`."""
        known = self.find([job.name for job in jobs])
        return [Submitted(job.name, job.name) if job.name in known else self._submit(job) for job in jobs]

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        """See :class:`scheduler.executors.ports.Executor`."""
        return {seen.name: seen.name for seen in self._known(self._seen(self._rows(names)))}

    def observe(self) -> Sequence[Seen]:
        """See :class:`scheduler.executors.ports.Executor`. Removes what is left of jobs long forgotten."""
        found = self._seen(self._squeue([]))
        if time.monotonic() - self._tidied >= _TIDY_S:
            self._tidied = time.monotonic()
            self._tidy(self._kept().difference(found))
        return self._known(found)

    def cancel(self, handles: Sequence[str], grace: float) -> None:
        """See :class:`scheduler.executors.ports.Executor`. Slurm's ``KillWait`` stands for ``grace``."""
        numbers = [row.number for row in self._rows(handles) if not row.has_ended]
        for some in _parts(numbers):
            self._run("scancel", *some)

    def logs(self, handle: str, tail: int) -> str | None:
        """See :class:`scheduler.executors.ports.Executor`."""
        with explained(self._place):
            return tail_of(self._place_of(handle) / "log", tail)

    def forget(self, handles: Sequence[str]) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        for handle in handles:
            shutil.rmtree(self._place_of(handle), ignore_errors=True)

    def check(self) -> Sequence[Finding]:
        """See :class:`scheduler.executors.ports.Executor`."""
        found = []
        try:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._place):
                found.append(Finding(True, f"jobs keep their files in {self._place}; the nodes must see it, too"))
        except OSError as error:
            found.append(Finding(False, f"no files can be made in {self._place}: {error.strerror}"))
        found.append(Finding(True, self._run("sinfo", "--version").stdout.strip()))
        partitions = [line.split("|") for line in self._run("sinfo", "-h", "-o", "%P|%a|%F").stdout.splitlines()]
        wanted = self._defaults.get("partition")
        usable = any(row[1] == "up" and wanted in (None, row[0].rstrip("*")) for row in partitions)
        shown = ", ".join(f"{row[0]} {row[1]}, nodes {row[2]} (allocated/idle/other/total)" for row in partitions)
        found.append(Finding(usable, f"partitions: {shown}" if shown else "there are no partitions"))
        if wanted is not None and not usable:
            found.append(Finding(False, f"partition {wanted}, which defaults names, is not up"))
        config = slurm_parse.config_of(self._run("scontrol", "show", "config").stdout)
        for name, meaning in slurm_parse.CONFIG.items():
            found.append(Finding(True, f"{name} is {config.get(name, 'unknown')}: {meaning}"))
        warned = any("send_user_signal" in value for value in config.values())
        found.append(Finding(True, f"jobs {'' if warned else 'do not '}get SIGTERM before they are preempted"))
        return found

    def close(self) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""

    # Submissions

    def _submit(self, job: Job) -> Submitted | Refused:
        options = {**self._defaults, **job.options}
        wrong = slurm_parse.wrong_option(options)
        if wrong is not None:
            return Refused(job.name, False, f"executor_options: {wrong}")
        unfit = next((one for one in job.env if not slurm_parse.is_variable(one)), None)
        if unfit is not None:
            return Refused(job.name, False, f"{unfit!r:.80} is not the name of a variable")
        place = self._place_of(job.name)
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(
                place / "env", "".join(f"{name}={shlex.quote(value)}\n" for name, value in self._env(job).items())
            )
        except OSError as error:
            return Refused(job.name, True, f"no files can be made in {place}: {error.strerror}", slurm_parse.RETRY_S)
        script = _BATCH_SCRIPT.format(env=shlex.quote(str(place / "env")), command=shlex.join(job.argv))
        done = self._run("sbatch", *self._arguments(job, options), input=script, may_fail=True)
        number = slurm_parse.job_number(done.stdout)
        if done.returncode == 0 and number is not None:
            return Submitted(job.name, job.name)
        return slurm_parse.refusal(job.name, done.stderr or f"sbatch ended with exit status {done.returncode}")

    def _arguments(self, job: Job, options: Mapping[str, Any]) -> Iterator[str]:
        yield from ("--parsable", "--no-requeue", "--dependency=singleton", "--export=NONE", "--open-mode=append")
        yield from (f"--job-name={job.name}", f"--output={self._place_of(job.name) / 'log'}", "--nodes=1", "--ntasks=1")
        yield f"--signal=B:TERM@{WARNING_S}"
        if job.limit is not None:
            yield f"--time={math.ceil((job.limit + 2 * WARNING_S) / 60)}"
        yield from slurm_parse.asked_for(job.resources, options, timed=job.limit is not None)

    def _env(self, job: Job) -> dict[str, str]:
        """What the job has of the daemon's environment, its configuration first, and what is set for it."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if (name in self._passed_on or (name.startswith("SCHEDD_") and slurm_parse.is_variable(name)))
            and name not in job.without
        }
        return {**inherited, **job.env}

    # What Slurm says

    def _rows(self, names: Iterable[str]) -> list[slurm_parse.SlurmRow]:
        ours = [name for name in names if slurm_parse.NAME.fullmatch(name)]
        return [row for some in _parts(ours) for row in self._squeue([f"--name={','.join(some)}"])]

    def _squeue(self, which: Sequence[str]) -> list[slurm_parse.SlurmRow]:
        user = f"--user={user_id()}"
        return slurm_parse.rows(self._run("squeue", "-h", "-t", "all", user, *which, "-O", slurm_parse.COLUMNS).stdout)

    def _seen(self, rows: Iterable[slurm_parse.SlurmRow]) -> dict[str, Seen]:
        """One job for each name: that which is not over, or else the one that was submitted last."""
        best: dict[str, slurm_parse.SlurmRow] = {}
        for row in rows:
            other = best.get(row.name)
            if other is None or (not row.phase.over, row.age) > (not other.phase.over, other.age):
                best[row.name] = row
        return {name: row.seen() for name, row in best.items() if row.phase is not PlacementPhase.GONE}

    def _known(self, found: Mapping[str, Seen]) -> list[Seen]:
        """Those that are not over, or not forgotten."""
        kept = self._kept()
        return [seen for seen in found.values() if seen.name in kept or not seen.phase.over]

    def _run(
        self, program: str, *arguments: str, input: str = "", may_fail: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands. Raises ExecutorError: it failed, or hangs, or its controller is away."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(_OF_COMMANDS)}
        conf = self._conf or os.environ.get("SLURM_CONF")
        env |= {"LC_ALL": "C"} | ({} if conf is None else {"SLURM_CONF": conf})
        try:
            done = subprocess.run(
                [program, *arguments],
                input=input,
                env=env,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_COMMAND_S,
            )
        except subprocess.TimeoutExpired as error:
            output = (error.stderr or b"").decode(errors="replace")
            if may_fail and slurm_parse.is_full(output):  # sbatch itself tries again for minutes
                return subprocess.CompletedProcess([program], -1, "", output)
            output = slurm_parse.first_line(output)
            raise ExecutorError(f"{program} has not ended within {_COMMAND_S:g} s{output and f': {output}'}") from None
        except OSError as error:
            raise ExecutorError(f"{program} cannot be run: {error.strerror}") from error
        if done.returncode and (not may_fail or slurm_parse.is_away(done.stderr)):
            raise ExecutorError(f"{program}: {slurm_parse.first_line(done.stderr) or f'exit status {done.returncode}'}")
        return done

    # Its files

    def _place_of(self, handle: str) -> Path:
        if not slurm_parse.NAME.fullmatch(handle):
            raise ExecutorError(f"{handle!r:.80} is no job of schedd's")
        return self._place / handle

    def _kept(self) -> set[str]:
        with explained(self._place):
            try:
                return {entry.name for entry in os.scandir(self._place)}
            except FileNotFoundError:
                return set()

    def _tidy(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(OSError):
                place = self._place / name
                if slurm_parse.NAME.fullmatch(name) and time.time() - place.stat().st_mtime > KEPT_S:
                    shutil.rmtree(place, ignore_errors=True)


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), _NAMES_AT_ONCE):
        yield names[first : first + _NAMES_AT_ONCE]
