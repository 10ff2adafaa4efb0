"""A pod's first container as a process of this machine, and how a kubelet reports it.

Images, volumes and users are not there: the one image that there is, is this machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.warm import warm

IMAGE = "registry.example/schedd:1"  # the only one there is
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "SCHEDD_TEST_MARK")
Object = dict[str, Any]


def start(pod: Object, place: Path) -> Any:
    """Its process, a subprocess.Popen or what is like one. Raises OSError: there is no such command."""
    container = pod["spec"]["containers"][0]
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= {one["name"]: one.get("value", "").replace("$$(", "$(") for one in container.get("env") or []}
    argv = [one.replace("$$(", "$(") for one in container["command"]]
    with open(log_of(pod, place), "ab") as log, open(os.devnull, "rb") as null:
        if argv[1:3] == ["-P", "-m"]:  # schedd's own: forked instead of executed, which is the same and faster
            fds = [null.fileno(), log.fileno(), log.fileno()]
            return warm.start(argv[3], argv[4:], place, env, fds, session=True)
        return subprocess.Popen(argv, env=env, stdin=null, stdout=log, stderr=log, start_new_session=True)


def log_of(pod: Object, place: Path) -> Path:
    """The file of what it writes, once it was started."""
    return place / f"{pod['metadata']['uid']}.log"


def last_lines(log: Path, lines: int | None) -> str:
    """The end of a file; all of it if ``lines`` is None."""
    text = log.read_text(errors="replace").splitlines(keepends=True)
    return "".join(text if lines is None else text[-lines:])


def kill(process: Any, number: int) -> None:
    """Signal it."""
    if number == signal.SIGTERM:  # a runtime signals the container's first process
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
        return
    for send in (os.killpg, os.kill):  # a forked one may have no group of its own yet
        with suppress(ProcessLookupError):
            send(process.pid, number)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_there(pod: Object) -> bool:
    """Whether there is its container's image."""
    image: str = pod["spec"]["containers"][0]["image"]
    return image.split("@")[0] == IMAGE


def pulling(pod: Object) -> Object:
    """The status of a pod whose image is not there."""
    message = f'Back-off pulling image "{pod["spec"]["containers"][0]["image"]}"'
    return status_of(pod, "Pending", waiting={"reason": "ImagePullBackOff", "message": message})


def running(pod: Object) -> Object:
    """The status of a pod whose container has been started."""
    return status_of(pod, "Running", running={"startedAt": now()})


def not_started(pod: Object, error: OSError) -> Object:
    """The status of a pod whose command is not in its image."""
    command = pod["spec"]["containers"][0]["command"][0]
    return status_of(pod, "Failed", terminated=_terminated(128, "StartError", f"{command}: {error.strerror}"))


def ended(pod: Object, code: int) -> Object:
    """The status of a pod whose container has ended. ``code``: below 0: by a signal."""
    good = code == 0 and pod["status"].get("reason") != "DeadlineExceeded"
    state = _terminated(code if code >= 0 else 128 - code, "Completed" if code == 0 else "Error", "")
    return status_of(pod, "Succeeded" if good else "Failed", terminated=state)


def late() -> Object:
    """What a pod's status says, too, once its time is up."""
    return {
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
    }


def status_of(pod: Object, phase: str, **state: Object) -> Object:
    container = pod["spec"]["containers"][0]
    about = {"name": container["name"], "image": container["image"], "state": state}
    about |= {"imageID": "", "ready": "running" in state, "restartCount": 0}
    return {"phase": phase, "containerStatuses": [about]}


def _terminated(code: int, reason: str, message: str) -> Object:
    return {"exitCode": code, "reason": reason, "message": message, "finishedAt": now()}
