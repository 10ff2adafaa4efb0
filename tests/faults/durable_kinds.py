"""Task types whose effects are counted: transfers between accounts, and workflows of many steps."""

from __future__ import annotations

import os
import time
from typing import Any

import sqlalchemy as sa

from faults import kinds
from scheduler import AsyncContext, Context, RetryPolicy, Task

EVER = RetryPolicy(min_wait=0, max_wait=0, max_attempts=None, jitter=0.0, strategy="fixed")
MOVE = sa.text("UPDATE accounts SET balance = balance + :amount WHERE id = :id")
BOOK = sa.text("INSERT INTO transfers (task, attempt) VALUES (:task, :attempt)")


class Transfer(Task, retry=EVER):
    """Between two accounts, in one commit with its success."""

    source: int
    target: int
    amount: int

    def run(self, ctx: Context) -> None:
        with ctx.transaction() as tx:
            for account, amount in sorted([(self.source, -self.amount), (self.target, self.amount)]):
                tx.execute(MOVE, {"id": account, "amount": amount})
            tx.execute(BOOK, {"task": ctx.id, "attempt": ctx.attempt})
            tx.result = self.amount


class Workflow(Task, retry=EVER):
    """Steps whose effect is a line in a file, which no transaction takes back."""

    steps: int
    ms: float = 0.0
    grouped: bool = False

    def run(self, ctx: Context) -> int:
        how: Any = {"durable": "grouped"} if self.grouped else {}
        return sum(ctx.step(f"step {number}", self._do, ctx, number, **how) for number in range(self.steps))

    def _do(self, ctx: Context | AsyncContext, number: int) -> int:
        claim = ctx._attempt.claimed.claim
        line = f"{number} {claim}\n".encode()
        fd = os.open(kinds._link().notes / str(ctx.id), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        os.write(fd, line)
        os.close(fd)
        time.sleep(self.ms / 1000)
        return number


class AsyncWorkflow(Workflow, retry=EVER):
    async def run(self, ctx: AsyncContext) -> int:  # type: ignore[override]
        return sum([await ctx.step(f"step {number}", self._do, ctx, number) for number in range(self.steps)])


class ChildWorkflow(Workflow, retry=EVER, isolation="process"):
    """In a child process of the worker."""


ALL: tuple[Any, ...] = (Transfer, Workflow, AsyncWorkflow, ChildWorkflow)
