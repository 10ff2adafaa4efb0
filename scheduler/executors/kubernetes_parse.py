"""What Kubernetes says of a Job and its pods, as a phase and a reason; and why it refuses one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scheduler.executors.kubernetes_api import KubernetesAnswer
from scheduler.executors.kubernetes_spec import CONTAINER, PREFIX
from scheduler.executors.ports import NOT_MINE, PlacementPhase, Refused, Seen

NAME = re.compile(r"schedd-[0-9a-f]{1,8}-(w?[0-9]+)-([0-9]+)")
FULL_S = 30.0  # until a Job is submitted again that a quota had no room for
RETRY_S = 5.0  # until one is that is being deleted, or for which the server had no time
MAX_REASON = 300  # characters of why a pod waits or has ended
_SIGNALLED = 128  # an exit status of a container that a signal ended: this, and the signal's number
_PREEMPTED = ("NodeShutdown", "Preempting", "Shutdown", "Terminated")
_NEVER_STARTS = ("ErrImageNeverPull", "InvalidImageName")
_PLAIN = ("Completed", "Error", "ContainerCreating", "PodInitializing")  # say no more than the phase does
_RBAC = re.compile(r"cannot \w+ resource|being terminated", re.IGNORECASE)


class Pod(NamedTuple):
    """A pod of a Job. ``created``: as the server writes it, for an order."""

    phase: PlacementPhase
    reason: str
    exit_code: int | None
    created: str
    node: str | None


def seen_of(name: str, job: Mapping[str, Any] | None, pods: Iterable[Mapping[str, Any]]) -> Seen:
    """What is known of a job: of its pods while one lives, since a Job may be over before all its pods are.

    ``job``: None: it was deleted, and pods are left.
    """
    found = sorted((pod_of(pod) for pod in pods), key=lambda pod: pod.created)
    for phase in (PlacementPhase.RUNNING, PlacementPhase.STARTING, PlacementPhase.QUEUED):
        living = [pod for pod in found if pod.phase is phase]
        if living:
            return _seen(name, phase, living[0])
    # A second pod finds that the claim is the first one's: the first one tells more.
    telling = [pod for pod in found if pod.exit_code != NOT_MINE] or found
    ended, why = _ended(job)
    if telling:
        pod = telling[-1]
        asked_for = ended is PlacementPhase.CANCELLED or ended is PlacementPhase.TIMED_OUT
        if ended is not None and asked_for and pod.phase is PlacementPhase.FAILED and pod.exit_code != NOT_MINE:
            return _seen(name, ended, pod)
        return _seen(name, pod.phase, pod)
    if ended is None:
        return Seen(name=name, handle=name, phase=PlacementPhase.QUEUED, reason=why)
    return Seen(name=name, handle=name, phase=ended, reason=why)


def pod_of(pod: Mapping[str, Any]) -> Pod:
    """What is known of one pod."""
    meta, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    state = _state(status)
    phase, reason, code = PlacementPhase.QUEUED, "", None
    ended, waits, runs = (state.get(part) for part in ("terminated", "waiting", "running"))
    stated = _words(status.get("reason"), status.get("message"))
    if ended or status.get("phase") in ("Succeeded", "Failed"):
        ended = ended or {}
        given = ended.get("exitCode")
        code = given if isinstance(given, int) else 0 if status.get("phase") == "Succeeded" else None
        phase = _end(meta, status, ended, code)
        words = [_exit_text(code), stated, _words(ended.get("reason"), ended.get("message") if code != 0 else None)]
        reason = ", ".join(dict.fromkeys(word for word in words if word))
    elif runs or status.get("phase") in ("Running", "Unknown"):
        phase, reason = PlacementPhase.RUNNING, stated
    elif waits or spec.get("nodeName"):
        waits = waits or {}
        phase = PlacementPhase.FAILED if waits.get("reason") in _NEVER_STARTS else PlacementPhase.STARTING
        reason = stated or _words(waits.get("reason"), waits.get("message"))
    else:
        scheduled = _condition(status, "PodScheduled")
        reason = stated or _words(scheduled.get("reason"), scheduled.get("message"))
    where = f"pod {meta.get('name')}"
    return Pod(
        phase,
        f"{where}, {reason}" if reason else where,
        code,
        str(meta.get("creationTimestamp") or ""),
        spec.get("nodeName"),
    )


def refusal(name: str, answer: KubernetesAnswer) -> Refused | None:
    """Why a Job was not taken; None: the server takes none at all."""
    reason = answer.message
    if answer.status == 429 or (answer.status == 409 and answer.reason != "AlreadyExists") or answer.status == 408:
        return Refused(name, True, reason, RETRY_S if answer.after is None else answer.after)
    if answer.status == 403 and "exceeded quota" in reason:
        return Refused(name, True, reason, FULL_S if answer.after is None else answer.after)
    if answer.status == 404 or (answer.status == 403 and _RBAC.search(reason)):
        return None  # there is no such namespace, or we may not
    return Refused(name, False, reason)


def is_ours(job: Mapping[str, Any]) -> bool:
    """Whether the labels of a Job fit its name. A worker's job is for no task: its label says 0."""
    meta = job.get("metadata") or {}
    labels, fits = meta.get("labels") or {}, NAME.fullmatch(str(meta.get("name")))
    if fits is None:
        return False
    task, claim = fits.groups()
    wanted = ("0" if task.startswith("w") else task, claim)
    return (labels.get(f"{PREFIX}task"), labels.get(f"{PREFIX}claim")) == wanted


def _seen(name: str, phase: PlacementPhase, pod: Pod) -> Seen:
    code = pod.exit_code if phase.over else None
    number = code - _SIGNALLED if code is not None and code > _SIGNALLED else None
    return Seen(
        name=name,
        handle=name,
        phase=phase,
        reason=pod.reason,
        exit_code=None if number is not None else code,
        signal=number,
        node=pod.node,
    )


def _state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the job's own container: others may have been put beside it."""
    for one in status.get("containerStatuses") or ():
        if one.get("name") == CONTAINER:
            found: Mapping[str, Any] = one.get("state") or {}
            return found
    return {}


def _end(
    meta: Mapping[str, Any], status: Mapping[str, Any], ended: Mapping[str, Any], code: int | None
) -> PlacementPhase:
    if code == 0:
        return PlacementPhase.SUCCEEDED
    if code == NOT_MINE:
        return PlacementPhase.FAILED
    reasons = (status.get("reason"), ended.get("reason"))
    if _condition(status, "DisruptionTarget").get("status") == "True" or any(one in _PREEMPTED for one in reasons):
        return PlacementPhase.PREEMPTED
    if "DeadlineExceeded" in reasons:
        return PlacementPhase.TIMED_OUT
    return PlacementPhase.CANCELLED if meta.get("deletionTimestamp") else PlacementPhase.FAILED


def _ended(job: Mapping[str, Any] | None) -> tuple[PlacementPhase | None, str]:
    """How a Job ended by itself, and why; None: it has not."""
    if job is None:
        return PlacementPhase.CANCELLED, "the Job was deleted"
    meta, status, spec = (job.get(part) or {} for part in ("metadata", "status", "spec"))
    failed = _condition(status, "Failed")
    if failed.get("status") == "True":
        late = failed.get("reason") == "DeadlineExceeded"
        why = _words(failed.get("reason"), failed.get("message")) or "the Job failed"
        return (PlacementPhase.TIMED_OUT if late else PlacementPhase.FAILED), why
    if _condition(status, "Complete").get("status") == "True":
        return PlacementPhase.SUCCEEDED, "the Job is complete"
    if meta.get("deletionTimestamp"):
        return PlacementPhase.CANCELLED, "the Job is being deleted"
    return None, "the Job is suspended" if spec.get("suspend") else "the Job has no pod yet"


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind), {})


def _words(reason: object, message: object) -> str:
    if not reason or reason in _PLAIN:
        return " ".join(str(message).split())[:MAX_REASON] if message else ""
    text = f"{reason}: {message}" if message else str(reason)
    return " ".join(text.split())[:MAX_REASON]


def _exit_text(code: int | None) -> str:
    if not code:
        return ""
    try:
        return f"ended by {signal.Signals(code - _SIGNALLED).name}"
    except ValueError:
        return f"exit status {code}"
