"""What Ray's Job API is given, and what it says: requests, options, states, and why it refuses."""

from __future__ import annotations

import math
import re
import shlex
import signal
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from scheduler.executors.ports import Job, PlacementPhase, Refused, Resources, Seen

NAME = re.compile(r"schedd-[0-9a-f]{1,8}-w?[0-9]+-[0-9]+")
RETRY_S = 5.0  # until a job is submitted again that Ray could not take
STOP_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"  # in a job's environment: whole seconds from SIGTERM to SIGKILL
STOP_MARGIN_S = 2  # beyond the grace: Ray's clock runs from before it has sent SIGTERM
MAX_REASON = 300  # characters

OPTIONS = ("label_selector", "resources", "runtime_env")
RUNTIME_ENV = (
    "conda",
    "config",
    "container",
    "env_vars",
    "excludes",
    "image_uri",
    "pip",
    "py_executable",
    "py_modules",
    "uv",
    "working_dir",
)
_OWN_RESOURCES = frozenset({"CPU", "GPU", "memory", "object_store_memory"})

_PHASES = {
    "PENDING": PlacementPhase.QUEUED,
    "RUNNING": PlacementPhase.RUNNING,
    "STOPPED": PlacementPhase.CANCELLED,
    "SUCCEEDED": PlacementPhase.SUCCEEDED,
    "FAILED": PlacementPhase.FAILED,
}
_WAITED_TOO_LONG = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"
_ENDED_BY_ITS_SUPERVISOR = "JOB_ENTRYPOINT_COMMAND_START_ERROR"
_LAST_LINES = "last available logs (truncated to 20,000 chars):\n"
_OF_RAY = re.compile(
    r"^(?:\S+ \S+\tINFO job_manager\.py:\d+ -- Runtime env is setting up\.|Running entrypoint for job \S+: .*)\n?",
    re.MULTILINE,
)
_AGENT = re.compile(r"Request failed with status code (\d+)")
_EXISTS = re.compile(r"submission_id \S+ already exists")


class Record(msgspec.Struct, frozen=True):
    """A job, as ``GET /api/jobs/`` says; times are milliseconds since 1970 UTC."""

    type: str = ""
    submission_id: str | None = None
    status: str = ""
    message: str | None = None
    error_type: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    metadata: dict[str, str] | None = None
    driver_agent_http_address: str | None = None
    driver_node_id: str | None = None
    driver_exit_code: int | None = None

    @property
    def name(self) -> str:
        """Its name if it is a job of schedd, or nothing."""
        name = self.submission_id or ""
        return name if self.type == "SUBMISSION" and NAME.fullmatch(name) else ""

    @property
    def store(self) -> str | None:
        """The store whose job it is; None: after a restart Ray has an end without a beginning."""
        return (self.metadata or {}).get("schedd.store")

    @property
    def phase(self) -> PlacementPhase:
        """GONE, which decides nothing, for a state that is not known, and for a job that Ray has lost sight of: its
        supervisor or node is away, and its process perhaps not."""
        found = _PHASES.get(self.status, PlacementPhase.GONE)
        if found is not PlacementPhase.FAILED or self.driver_exit_code is not None:
            return found
        if self.error_type == _WAITED_TOO_LONG:
            return PlacementPhase.PREEMPTED  # it found no room: that is not the task's fault
        began = self.driver_node_id is not None
        return PlacementPhase.GONE if began and self.error_type != _ENDED_BY_ITS_SUPERVISOR else PlacementPhase.FAILED

    @property
    def logged(self) -> str | None:
        """The last lines that a failed job wrote, which Ray keeps with it."""
        return (self.message or "").partition(_LAST_LINES)[2] or None

    def seen(self) -> Seen:
        """As the port has it."""
        phase, code, node = self.phase, self.driver_exit_code, None
        if self.driver_agent_http_address:
            node = urlsplit(self.driver_agent_http_address).hostname
        number = -code if phase.over and code is not None and code < 0 else None
        if number is not None:
            reason = f"ended by {_signal_name(number)}"
        elif code:
            reason = f"exit status {code}"
        elif phase is PlacementPhase.RUNNING and node:
            reason = f"on {node}"
        else:
            reason = shortened(f"{self.error_type}: {self.message}" if self.error_type else self.message or "")
        at = self.end_time if phase.over else self.start_time
        return Seen(
            name=self.name,
            handle=self.name,
            phase=phase,
            reason=reason or None,
            exit_code=code if phase.over and number is None else None,
            signal=number,
            node=node,
            at=None if at is None else at * 1000,
        )


def request(job: Job, options: Mapping[str, Any], grace: float) -> dict[str, Any]:
    """The body of a submission."""
    environment = dict(options.get("runtime_env", {}))
    environment["env_vars"] = {
        **job.env,
        **environment.get("env_vars", {}),
        STOP_VARIABLE: str(math.ceil(grace) + STOP_MARGIN_S),
    }
    cpu = job.resources.cpu
    fields: dict[str, Any] = {
        "entrypoint": f"exec {shlex.join(job.argv)}",  # signals and the exit status are the job's own
        "submission_id": job.name,
        "metadata": {f"schedd.{name}": value for name, value in job.labels.items()},
        "runtime_env": environment,
        "entrypoint_num_cpus": 1 if cpu is None else cpu,  # without any, Ray runs all on the head node
    }
    if job.resources.gpu:
        fields["entrypoint_num_gpus"] = job.resources.gpu
    if job.resources.memory_bytes is not None:
        fields["entrypoint_memory"] = job.resources.memory_bytes
    for name in ("resources", "label_selector"):
        if name in options:
            fields[f"entrypoint_{name}"] = options[name]
    return fields


def wrong_option(options: Mapping[str, Any]) -> str | None:
    """What is wrong with a task's options; None: nothing. What is in a runtime_env is left to Ray."""
    for name, value in options.items():
        if name not in OPTIONS:
            return f"there is no {name!r:.60}; the type ray has {', '.join(OPTIONS)}"
        if not isinstance(value, Mapping):
            return f"{name} must be a table, not {value!r:.40}"
        wrong = _CHECKS[name](value)
        if wrong is not None:
            return wrong
    return None


def _wrong_resources(given: Mapping[str, Any]) -> str | None:
    for name, value in given.items():
        if name in _OWN_RESOURCES:
            return f"resources are the cluster's own; {name} is asked for by the task's resources"
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            return f"resources.{name:.40} must be a number above 0, not {value!r:.40}"
    return None


def _wrong_labels(given: Mapping[str, Any]) -> str | None:
    wrong = next((name for name, value in given.items() if not isinstance(value, str)), None)
    return None if wrong is None else f"label_selector.{wrong:.40} must be a text"


def _wrong_environment(given: Mapping[str, Any]) -> str | None:
    for name, value in given.items():
        if name not in RUNTIME_ENV:
            return f"runtime_env has no {name!r:.60}; it has {', '.join(RUNTIME_ENV)}"
        if name == "env_vars":
            good = isinstance(value, Mapping) and all(isinstance(one, str) for one in value.values())
            if not good:
                return "runtime_env.env_vars must be a table of texts"
            if STOP_VARIABLE in value:
                return f"runtime_env.env_vars: {STOP_VARIABLE} is set by grace of the executor"
        elif name in ("working_dir", "py_modules"):
            places = value if isinstance(value, list | tuple) else [value]
            if not all(isinstance(one, str) and "://" in one for one in places):
                return f"runtime_env.{name} must be the address of an archive, such as https://… or s3://…"
    return None


_CHECKS = {"label_selector": _wrong_labels, "resources": _wrong_resources, "runtime_env": _wrong_environment}


def unfit(resources: Resources) -> str | None:
    """What Ray cannot be asked for."""
    if resources.disk_bytes is not None:
        return "Ray knows of no disk: have the nodes offer a resource of that name, and ask for it in executor_options"
    return None


def exists(text: str) -> bool:
    """Whether Ray says that it has a job of that name."""
    return _EXISTS.search(text) is not None


def refusal(name: str, status: int, text: str, after: float | None) -> Refused | None:
    """What an answer to a submission means for this job alone; None: Ray itself is unwell."""
    found = _AGENT.search(text)
    inner = status if found is None else int(found[1])  # the dashboard makes a 500 of what the node's agent answers
    if inner in (400, 413, 422):
        return Refused(name, False, last_line(text))
    if status in (429, 503):
        return Refused(name, True, f"Ray answered {status}: {last_line(text)}", RETRY_S if after is None else after)
    if found is not None:
        return Refused(name, True, f"Ray answered {status}: {last_line(text)}", RETRY_S)
    return None


def own_words(text: str, tail: int) -> str | None:
    """The end of what a job wrote, without what Ray wrote into the same file."""
    return _OF_RAY.sub("", text)[-tail:] or None


def last_line(text: str) -> str:
    """Of a traceback, or the page of an error, the line that says what it is."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" .")]
    return shortened(lines[-1]) if lines else ""


def shortened(text: str) -> str:
    """The first line that says anything, and no more than a reason may have."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:MAX_REASON] if lines else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
