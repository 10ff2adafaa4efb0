"""Running commands in tests, and finding the processes that belong to one test."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from scheduler.tasks import CommandTask

from .fake import FakeContext

ALLOWED = {"command": {"enabled": True}}


def run(*argv: str, ctx: FakeContext | None = None, **fields: Any) -> dict[str, Any]:
    ctx = ctx or FakeContext(ALLOWED)
    return CommandTask(list(argv), **fields).run(ctx)  # type: ignore[arg-type]


def sh(text: str, ctx: FakeContext | None = None, **fields: Any) -> dict[str, Any]:
    return run(text, ctx=ctx, shell=True, **fields)


def carriers(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if mark.encode() in command and state not in "ZX":
                found.append(int(entry.name))
    return found


def gone(mark: str, seconds: float = 10) -> bool:
    """Whether all processes that carry the mark end in time. For processes that are not children of the test."""
    until = time.monotonic() + seconds
    while carriers(mark):
        if time.monotonic() > until:
            return False
        os.sched_yield()
    return True


def descriptors() -> int:
    """How many are open. It may become less by itself: what earlier tests left in cycles is closed at some time."""
    return len(os.listdir("/proc/self/fd"))
