"""Handlers that move, and handlers that stand still."""

from __future__ import annotations

import asyncio
import threading
import time

from scheduler import AsyncContext, Context, Task, task

PATIENCE = 30.0
over = threading.Event()


def works_on() -> None:
    """In short pauses, as a handler does that polls."""
    end = time.monotonic() + PATIENCE
    while not over.is_set() and time.monotonic() < end:
        threading.Event().wait(0.01)


def stands_still() -> None:
    over.wait(PATIENCE)


@task
def thread_moves(ctx: Context) -> None:
    works_on()


@task
def thread_stands(ctx: Context) -> None:
    stands_still()


async def naps() -> None:
    for _ in range(3000):
        await asyncio.sleep(0.01)
        if over.is_set():
            return


@task
async def coroutine_moves(ctx: AsyncContext) -> None:
    await naps()


@task
async def coroutine_stands(ctx: AsyncContext) -> None:
    await asyncio.sleep(PATIENCE)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


@task
async def one_of_several_moves(ctx: AsyncContext) -> None:
    standing = asyncio.create_task(forever())
    await asyncio.gather(naps(), asyncio.sleep(0.01))
    standing.cancel()


@task
async def all_of_several_stand(ctx: AsyncContext) -> None:
    await asyncio.gather(forever(), forever())


@task
async def call_in_thread_moves(ctx: AsyncContext) -> None:
    await asyncio.to_thread(works_on)


@task
async def call_in_thread_stands(ctx: AsyncContext) -> None:
    await asyncio.to_thread(stands_still)


def polls() -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(0.01)


class ChildMoves(Task, isolation="process"):
    def run(self, ctx: Context) -> None:
        polls()


class ChildStands(Task, isolation="process"):
    def run(self, ctx: Context) -> None:
        time.sleep(PATIENCE)


class AsyncChildMoves(Task, isolation="process"):
    async def run(self, ctx: AsyncContext) -> None:
        for _ in range(3000):
            await asyncio.sleep(0.01)


class AsyncChildStands(Task, isolation="process"):
    async def run(self, ctx: AsyncContext) -> None:
        await asyncio.sleep(PATIENCE)


@task
def function_moves(ctx: Context) -> None:
    ctx.cpu(polls)


@task
def function_stands(ctx: Context) -> None:
    ctx.cpu(time.sleep, PATIENCE)


@task
async def awaited_function_moves(ctx: AsyncContext) -> None:
    await ctx.cpu(polls)


@task
async def awaited_function_stands(ctx: AsyncContext) -> None:
    await ctx.cpu(time.sleep, PATIENCE)


@task(stall_after=3600)
def promises_signs(ctx: Context) -> None:
    works_on()


@task(timeout=3600)
def bounded(ctx: Context) -> None:
    stands_still()


HERE = (thread_moves, thread_stands, coroutine_moves, coroutine_stands, one_of_several_moves, all_of_several_stand)
CALLS = (call_in_thread_moves, call_in_thread_stands, promises_signs, bounded)
CHILDREN = (ChildMoves, ChildStands, AsyncChildMoves, AsyncChildStands)
FUNCTIONS = (function_moves, function_stands, awaited_function_moves, awaited_function_stands)
