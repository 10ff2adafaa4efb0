"""``/tasks/ID/log/follow``: what a task's attempts write, as it comes: a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import anyio.to_thread
from starlette.responses import Response, StreamingResponse

from scheduler.console.pages.task import log_text, mask_of
from scheduler.console.routes import stream
from scheduler.console.visit import BadInputError, Visit
from scheduler.errors import SchedulerError
from scheduler.model.texts import beyond
from scheduler.operations.details import attempt_logs, attempts, get_task

LOOK_EVERY = 1.0  # seconds; what a running attempt writes is stored every second
HEARTBEAT_EVERY = 15  # looks without anything new until a heartbeat, so that proxies keep the stream open
MAX_STREAMS = 3  # that one visitor follows at once: browsers allow six connections to one server
MAX_LOOKS = 3600  # the browser connects again then

_following: Counter[str] = Counter()


@stream("/tasks/{id:int}/log/follow")
async def follow(visit: Visit) -> Response:
    """The lines from ``Last-Event-ID`` on: ``claim:length`` of what was received. Ends with the task."""
    task_id, who = visit.params["id"], visit.who.name
    if _following[who] >= MAX_STREAMS:
        raise BadInputError(f"no more than {MAX_STREAMS} logs are followed at once", 429)
    at = _position(visit.last_event or visit.asked("from"))
    await anyio.to_thread.run_sync(_read, visit, task_id, 0)  # a task that is not there is a 404
    return StreamingResponse(
        _lines(visit, task_id, at, who),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


def _position(text: str) -> tuple[int, int]:
    claim, _, length = text.partition(":")
    fits = all(part.isascii() and part.isdigit() and len(part) < 19 for part in (claim, length))
    return (int(claim), int(length)) if fits else (0, 0)


def _read(visit: Visit, task_id: int, claim: int) -> tuple[bool, list[tuple[int, str]]]:
    """Whether the task has ended, and what its attempts wrote from this claim on. A short transaction."""
    with visit.read() as tx:
        found = get_task(tx, task_id)
        texts = attempt_logs(tx, task_id, after=claim - 1)
        mask = mask_of(tx, found, attempts(tx, task_id))
        return found.state.terminal, [(c, log_text(mask, text)) for c, text in texts]


async def _lines(visit: Visit, task_id: int, at: tuple[int, int], who: str) -> AsyncIterator[str]:
    _following[who] += 1
    quiet = 0
    before: str | None = None  # what was sent of the attempt; None: by another connection
    try:
        yield "retry: 2000\n\n"
        for _ in range(MAX_LOOKS):
            try:
                ended, texts = await anyio.to_thread.run_sync(_read, visit, task_id, at[0])
            except SchedulerError as error:
                yield _event("trouble", {"text": str(error)})
                await asyncio.sleep(LOOK_EVERY)
                continue
            for claim, text in texts:
                whole = text if ended else text[: text.rfind("\n") + 1]
                if claim != at[0]:
                    before = ""
                elif before is None:
                    before = whole[: at[1]] if at[1] <= len(whole) else ""
                new = beyond(before, whole)
                if new:
                    quiet, at, before = 0, (claim, len(whole)), whole
                    yield _event("lines", {"claim": claim, "text": new}, f"{at[0]}:{at[1]}")
            if ended:
                yield _event("end", {})
                return
            quiet += 1
            if quiet % HEARTBEAT_EVERY == 0:
                yield ": still there\n\n"
            await asyncio.sleep(LOOK_EVERY)
    finally:
        _following[who] -= 1
        if _following[who] <= 0:
            del _following[who]


def _event(name: str, data: dict[str, object], mark: str | None = None) -> str:
    head = "" if mark is None else f"id: {mark}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"
