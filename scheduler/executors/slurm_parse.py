"""What Slurm's commands are given, and what they say: options, states, and why they refuse."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scheduler.executors.ports import ExecutorError, PlacementPhase, Refused, Resources, Seen

NAME = re.compile(r"schedd-[0-9a-f]{1,8}-w?[0-9]+-[0-9]+")
RETRY_S = 5.0  # until a job is submitted again for which there are no files
FULL_S = 30.0  # until a job is submitted again that Slurm has no room for
MAX_VALUE = 1000  # characters of an option
MAX_NICE = 2_147_483_645

OPTIONS = (
    "account",
    "constraint",
    "exclude",
    "gres",
    "licenses",
    "nice",
    "nodelist",
    "partition",
    "qos",
    "reservation",
    "time",
)
CONFIG = {
    "KillWait": "so long a job has from SIGTERM to SIGKILL when it is cancelled",
    "MinJobAge": "so long Slurm knows a job that is over; a few intervals are enough",
}

_WIDTHS = {"JobID": 20, "Name": 80, "State": 20, "exit_code": 12, "NodeList": 80, "Reason": 200}
COLUMNS = ",".join(f"{name}:{width}|" for name, width in _WIDTHS.items())

_PHASES = {
    "PENDING": PlacementPhase.QUEUED,
    "REQUEUED": PlacementPhase.QUEUED,
    "REQUEUE_FED": PlacementPhase.QUEUED,
    "REQUEUE_HOLD": PlacementPhase.QUEUED,
    "RESV_DEL_HOLD": PlacementPhase.QUEUED,
    "SPECIAL_EXIT": PlacementPhase.QUEUED,
    "CONFIGURING": PlacementPhase.STARTING,
    "RUNNING": PlacementPhase.RUNNING,
    "COMPLETING": PlacementPhase.RUNNING,
    "RESIZING": PlacementPhase.RUNNING,
    "SIGNALING": PlacementPhase.RUNNING,
    "STAGE_OUT": PlacementPhase.RUNNING,
    "STOPPED": PlacementPhase.RUNNING,
    "SUSPENDED": PlacementPhase.RUNNING,
    "COMPLETED": PlacementPhase.SUCCEEDED,
    "FAILED": PlacementPhase.FAILED,
    "BOOT_FAIL": PlacementPhase.FAILED,
    "NODE_FAIL": PlacementPhase.FAILED,
    "OUT_OF_MEMORY": PlacementPhase.FAILED,
    "CANCELLED": PlacementPhase.CANCELLED,
    "REVOKED": PlacementPhase.CANCELLED,
    "PREEMPTED": PlacementPhase.PREEMPTED,
    "DEADLINE": PlacementPhase.TIMED_OUT,
    "TIMEOUT": PlacementPhase.TIMED_OUT,
}
# Jobs that wait for these are never started.
_NEVER_STARTS = re.compile(
    "launch.failed.requeued.held|BadConstraints|DependencyNeverSatisfied|JobHoldMaxRequeue", re.IGNORECASE
)
_TELLING = ("NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "TIMEOUT", "DEADLINE", "PREEMPTED")
_AWAY = re.compile(
    "unable to contact slurm controller|connection refused|socket timed out|connection timed out|zero bytes were "
    "transmitted|unexpected message received|controller in standby|authentication error|munge|configuration source|"
    "communications? (connection|shutdown|timeout|error|failure)|slurm_load_jobs error|backup controller",
    re.IGNORECASE,
)
_LATER = re.compile(
    "temporarily unable|resource temporarily unavailable|job violates|max ?job ?count|maxsubmit|required partition not "
    "available|i/o error writing|inactive or drain|in a transition state|no space left|try again|"
    "job (array|count) .*limit|reached .*limit",
    re.IGNORECASE,
)
_PER_JOB = re.compile(r"PerJob\w*Limit|MaxWall|MaxNodePerUser|MaxCpuPerJob|TimeLimit\b|MinCpu", re.IGNORECASE)
_PREFIX = re.compile(r"^(sbatch|squeue|scancel|sinfo|scontrol): (error|fatal): ")


class SlurmRow(NamedTuple):
    """A job, as squeue says. ``number``: Slurm's own, which it may give twice."""

    number: str
    name: str
    state: str
    code: str
    node: str
    why: str

    @property
    def age(self) -> int:
        """The higher, the later it was submitted."""
        return int(self.number) if self.number.isdecimal() else 0

    @property
    def phase(self) -> PlacementPhase:
        """GONE, which decides nothing, for a state that is not known."""
        found = _PHASES.get(self.state, PlacementPhase.GONE)
        if found is PlacementPhase.QUEUED and _NEVER_STARTS.search(self.why):
            return PlacementPhase.FAILED
        return found

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more and waits no more, also for what will never be."""
        return _PHASES.get(self.state, PlacementPhase.GONE).over

    def seen(self) -> Seen:
        """As the port has it."""
        phase, status = self.phase, int(self.code) if self.code.isdecimal() else 0
        number, code = status & 0x7F, status >> 8
        detail = f"job {self.number}"
        if phase.over and number:
            detail += f", ended by {_signal_name(number)}"
        elif phase.over and code:
            detail += f", exit status {code}"
        if self.state in _TELLING:
            detail += f", {self.state}"
        elif self.why not in ("", "None", "NonZeroExitCode") and not (phase.over and status):
            detail += f", {self.why}"
        return Seen(
            name=self.name,
            handle=self.name,
            phase=phase,
            reason=detail,
            exit_code=code if phase.over and not number and (code or phase is PlacementPhase.SUCCEEDED) else None,
            signal=number if phase.over and number else None,
            node=self.node or None,
        )


def rows(text: str) -> list[SlurmRow]:
    """The jobs of schedd in what squeue wrote with ``COLUMNS``. Raises ExecutorError for one of another form."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", len(_WIDTHS) - 1)]
        if len(parts) < 2 or not NAME.fullmatch(parts[1]):
            continue  # the user's own
        if len(parts) < len(_WIDTHS) or not parts[0][:1].isdecimal():
            raise ExecutorError(f"squeue wrote what cannot be read: {line[:200]!r}")
        number, name, state, code, node, why = parts
        found.append(SlurmRow(number, name, state, code, node, why.rstrip("|").rstrip()))
    return found


def job_number(text: str) -> str | None:
    """What ``sbatch --parsable`` wrote: the number, and the cluster where there are several."""
    found = re.fullmatch(r"(\d+)(;\S+)?", text.strip())
    return found[1] if found else None


def is_away(text: str) -> bool:
    """Whether a command failed since the controller, or what it needs to be asked, is not there."""
    return _AWAY.search(text) is not None


def is_full(text: str) -> bool:
    """Whether sbatch says that Slurm has no room for the job now."""
    return _LATER.search(text) is not None and _PER_JOB.search(text) is None


def refusal(name: str, text: str) -> Refused:
    """What sbatch wrote when it took no job."""
    lines = [_PREFIX.sub("", line).removeprefix("Batch job submission failed: ") for line in text.splitlines()]
    reason = "; ".join(line.strip() for line in lines if line.strip())[:500]
    later = is_full(text)
    return Refused(name, later, reason, FULL_S if later else None)


def first_line(text: str) -> str:
    """The first line that says anything, without the command's name."""
    lines = [_PREFIX.sub("", line).strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


def config_of(text: str) -> dict[str, str]:
    """What ``scontrol show config`` wrote."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def is_variable(name: str) -> bool:
    """Whether a shell takes this for the name of a variable."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def wrong_option(options: Mapping[str, Any]) -> str | None:
    """What is wrong with a task's options; None: nothing."""
    for name, value in options.items():
        if name not in OPTIONS:
            return f"there is no {name!r:.60}; the type slurm has {', '.join(OPTIONS)}"
        whole = isinstance(value, int) and not isinstance(value, bool)
        if name == "nice":
            if not whole or not 0 <= value <= MAX_NICE:
                return f"nice must be a whole number from 0, not {value!r:.40}"
        elif name == "time":
            if not whole or not 3 <= value <= 525_600:
                return f"time must be whole minutes from 3 to 525600, not {value!r:.40}"
        elif not isinstance(value, str) or not value or len(value) > MAX_VALUE or not value.isprintable():
            return f"{name} must be a text of 1 to {MAX_VALUE} printable characters, not {value!r:.40}"
    return None


def asked_for(resources: Resources, options: Mapping[str, Any], *, timed: bool) -> Iterator[str]:
    """Arguments of sbatch. ``timed``: the job has a limit already, which goes before the option ``time``."""
    yield f"--cpus-per-task={max(1, math.ceil(resources.cpu or 1))}"
    if resources.memory_bytes is not None:
        yield f"--mem={math.ceil(resources.memory_bytes / 2**20)}M"
    if resources.disk_bytes is not None:
        yield f"--tmp={math.ceil(resources.disk_bytes / 2**20)}M"
    gres = [str(options["gres"])] if "gres" in options else []
    if resources.gpu:
        gres.insert(0, f"gpu:{resources.gpu}")
    if gres:
        yield f"--gres={','.join(gres)}"
    for name in sorted(set(options) - {"gres"}):
        if name != "time" or not timed:
            yield f"--{name}={options[name]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
