"""The files on an outcome's way from the handler's return to its row, counted on the stacks of a real run."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from scheduler import Context, Scheduler, task
from support.databases import Database

ROOT = Path(__file__).parents[2]
POINTS = {
    ("scheduler/engine/attempt/outcomes.py", "outcome_of_result"),
    ("scheduler/engine/state.py", "report"),
    ("scheduler/store/tasks/complete.py", "write"),
    ("scheduler/store/tasks/complete.py", "complete_unlocked"),
}
LOOP = {"scheduler/engine/engine.py", "scheduler/engine/dispatch/cycle.py"}  # it says when outcomes are taken


@task
def answer(ctx: Context) -> int:
    return 42


class Stacks:
    """A profile function that notes the project's files on the stack whenever one of POINTS is called."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], list[str]] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "call" or (point := (_file(frame), frame.f_code.co_name)) not in POINTS or point in self.seen:
            return
        files: list[str] = []
        at: FrameType | None = frame
        while at is not None:
            if (file := _file(at)).startswith("scheduler/") and file not in files:
                files.append(file)
            at = at.f_back
        self.seen[point] = files


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(f"{ROOT}/")


def test_an_outcome_passes_the_files_that_the_architecture_names(database: Database) -> None:
    stacks = Stacks()
    jobs = Scheduler(database.url)
    jobs.register(answer)
    threading.setprofile(stacks)
    try:
        with jobs:
            made = jobs.task(answer).schedule()
            assert jobs.wait(made, timeout=60)[made].result == 42
    finally:
        threading.setprofile(None)
        jobs.close()
    assert {file for file, _ in stacks.seen} == {file for file, _ in POINTS}
    way = {file for files in stacks.seen.values() for file in files} - LOOP

    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    part = text.split("### An outcome's way", 1)[1].split("###", 1)[0].split("The engine's loop", 1)[0]
    named = {f"scheduler/{file}" for file in re.findall(r"`((?:engine|store)/[\w/]+\.py)`", part)}
    assert way == named
    assert len(named) <= 6
