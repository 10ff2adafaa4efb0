"""Task types that change their process, and tell how they found it. Imported by the tests and by the children."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

from scheduler import AsyncContext, Context, Task


def mode_of_a_new_file() -> int:
    """What the umask leaves of 0o666."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "new")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        return stat.S_IMODE(path.stat().st_mode)


def where() -> list[Any]:
    return [os.getcwd(), mode_of_a_new_file()]


def move(to: str) -> list[Any]:
    """How it was before."""
    found = where()
    os.chdir(to)
    os.umask(0o777)
    return found


class Where(Task):
    def run(self, ctx: Context) -> list[Any]:
        return where()


class Move(Task):
    to: str
    stay: float = 0.0

    def run(self, ctx: Context) -> list[Any]:
        found = move(self.to)
        time.sleep(self.stay)
        return [*found, os.getcwd()]


class AMove(Task):
    """In a coroutine, or in threads of one."""

    to: str
    how: str = "here"

    async def run(self, ctx: AsyncContext) -> list[Any]:
        if self.how == "thread":
            return await asyncio.to_thread(move, self.to)
        if self.how == "step":
            return await ctx.step("move", move, self.to)
        return move(self.to)


class MoveInside(Task, isolation="process"):
    to: str

    def run(self, ctx: Context) -> list[Any]:
        return move(self.to)


class MoveByFunction(Task):
    to: str

    def run(self, ctx: Context) -> list[Any]:
        return ctx.cpu(move, self.to)
