"""The task type of the failover matrix: its result is the word of its payload, and each run notes both."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from faults import kinds
from scheduler import Context, Task

setup = kinds.setup  # a real schedd calls it


class Word(Task, kind="Word"):
    """Takes some milliseconds, asks its context all the time, and returns its word."""

    word: str
    ms: float = 0.0

    def run(self, ctx: Context) -> str:
        _note("start", ctx, self.word)
        until = time.monotonic() + self.ms / 1000
        how = "stopped"
        try:
            while time.monotonic() < until:
                ctx.check_cancelled()
                time.sleep(min(0.01, max(0.0, until - time.monotonic())))
            how = "end"
        finally:
            _note(how, ctx, self.word)
        return self.word


class WordRun(NamedTuple):
    """One run of a handler as it noted it. Nanoseconds, monotonic; ``end`` None: it was stopped, or never ended."""

    task: int
    claim: int
    word: str
    key: str
    start: int
    end: int | None


def _note(what: str, ctx: Context, word: str) -> None:
    claim = ctx._attempt.claimed.claim
    line = f"{what} {ctx.id} {claim} {word} {ctx.idempotency_key} {time.monotonic_ns()}\n"
    assert kinds.link is not None
    fd = os.open(kinds.link.notes / f"words-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    os.write(fd, line.encode())
    os.close(fd)


def word_runs(notes: Path) -> list[WordRun]:
    """All runs that handlers have noted so far, in the order in which each process began them."""
    found: list[WordRun] = []
    for path in notes.glob("words-*"):
        open_runs: dict[tuple[str, str, str], int] = {}
        for line in path.read_text().splitlines():
            what, task, claim, word, key, at = line.split()
            if what == "start":
                open_runs[task, claim, word] = len(found)
                found.append(WordRun(int(task), int(claim), word, key, int(at), None))
            elif what == "end":
                index = open_runs[task, claim, word]
                found[index] = found[index]._replace(end=int(at))
    return found
