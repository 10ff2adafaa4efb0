"""Placements: jobs of an executor, each for one claim of a task. What a backend says of a job is a hint."""

from __future__ import annotations

from scheduler.model.state import StoredEnum

NOT_MINE = 75  # exit status of a job whose claim is not its own: another job has it, or it was taken back
CANNOT_RUN = 76  # exit status of a job that cannot run the task, before it took the claim over
GRACE_VARIABLE = "SCHEDD_JOB_GRACE"  # in a job's environment: seconds from SIGTERM to SIGKILL
GATEWAY_VARIABLE = "SCHEDD_JOB_GATEWAY"  # URLs of gateways, for a job that has no database
TOKEN_VARIABLE = "SCHEDD_JOB_TOKEN"  # good for the one claim that the job is for
MAX_LOST_STARTS = 3  # in a row; then the task fails


class PlacementState(StoredEnum):
    """How far a placement is. Stored by position: append, never reorder; up to ``ended`` they are open."""

    RESERVED = "reserved"  # claimed for a job that the engine has not confirmed
    SUBMITTED = "submitted"  # the engine has the job
    ATTACHED = "attached"  # the job has taken the claim over, as a worker
    ENDED = "ended"


class PlacementPhase(StoredEnum):
    """What a backend says of a job. Stored by position: append, never reorder."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIMED_OUT = "timed out"
    GONE = "gone"  # the backend does not know it, or no longer

    @property
    def over(self) -> bool:
        """Whether the job runs no more, as far as the engine knows; GONE does not say that."""
        return self in (
            PlacementPhase.SUCCEEDED,
            PlacementPhase.FAILED,
            PlacementPhase.CANCELLED,
            PlacementPhase.PREEMPTED,
            PlacementPhase.TIMED_OUT,
        )


def job_name(store: str, task_id: int, claim: int) -> str:
    """The name of a placement's job: at most 63 characters, a DNS label. ``store``: the store's id, hexadecimal."""
    return f"{name_prefix(store)}{task_id}-{claim}"


def job_key(name: str) -> tuple[int, int] | None:
    """(task id, claim) of :func:`job_name`; None: of a job that is a worker for many tasks."""
    _, task_id, claim = name.rsplit("-", 2)
    return (int(task_id), int(claim)) if task_id.isdecimal() and claim.isdecimal() else None


def worker_job_name(store: str, executor_row: int, number: int) -> str:
    """The name of the job of a worker: ``schedd-5005a013-w3-17``, of the executor whose row among the workers is 3."""
    return f"{name_prefix(store)}w{executor_row}-{number}"


def worker_job_key(name: str) -> tuple[int, int]:
    """(row of the executor, number) of :func:`worker_job_name`. Raises ValueError."""
    row, _, number = name.rpartition("-w")[2].partition("-")
    return int(row), int(number)


def name_prefix(store: str) -> str:
    """What the names of all jobs of a store begin with."""
    return f"schedd-{store.replace('-', '')[:8].lower()}-"


def placement_text(executor: str, handle: str | None, phase: PlacementPhase | None, reason: str | None) -> str:
    """``placed on slurm as 4711: queued, Resources``."""
    where = f"placed on {executor}" + (f" as {handle}" if handle is not None else "")
    detail = ", ".join(part for part in (phase, reason) if part)
    return f"{where}: {detail}" if detail else where


MIN_SECRET = 16  # characters


def job_token(secret: str, store: str, executor: str, task_id: int, claim: int) -> str:
    """The token of one claim. ``secret``: what all daemons of the store share; ``store``: the store's id."""
    import hashlib
    import hmac

    text = f"schedd job\n{store}\n{executor}\n{task_id}\n{claim}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
