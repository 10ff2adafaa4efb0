"""BatchTask: calls a function for many items, and resumes after the last recorded one."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from scheduler import LeaseLost, PermanentError, RetryPolicy, StoreUnavailableError, Task, TaskTimeout
from scheduler.tasks.settings import NAME, imported, section

if TYPE_CHECKING:
    from scheduler import Context

REPORT_EVERY = 1.0  # seconds
MAX_FAILURES_LISTED = 100  # failures in the result


class BatchTask(Task, retry=RetryPolicy(min_wait=10, max_wait=3600, max_attempts=5)):
    """Calls ``function(ctx, item)`` for each of the items, in order.

    function: ``module:function``, one of those that ``[batch] functions`` names; the payload alone must not say what
    code runs. items: JSON values. chunk: after how many items is recorded how far it is: what follows the record is
    done again by the next attempt. on_error: ``stop`` (the default) or ``continue``, which goes on with the next item
    and tells in the result which failed. collect: keep what the calls return.

    Progress is shown. The result is ``{"done", "failed": [{"item", "error"}, …], "results"}``; ``failed`` has the first
    hundred, ``results`` (with ``collect``) one entry for each item, None for those that failed.

    Transient failures: whatever the function raises, with ``stop``. Permanent failures: a function that is not allowed
    or cannot be imported; PermanentError from it, with ``stop``; results of more than 1 MiB.
    """

    function: str
    items: list[Any]
    chunk: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    on_error: Literal["stop", "continue"] = "stop"
    collect: bool = False

    def __post_init__(self) -> None:
        if not NAME.match(self.function):
            raise ValueError(f'function must be "module:function", not {self.function!r}')

    def run(self, ctx: Context) -> dict[str, Any]:
        call = self._called(ctx)
        results: list[Any] = []
        failed: list[dict[str, Any]] = []
        failures = 0
        reported_at = time.monotonic()
        total = len(self.items)
        for start in range(0, total, self.chunk):
            part = self.items[start : start + self.chunk]
            # With what they are: a replay with other items must not take these for done.
            made = ctx.step(f"items from {start}: {_digest(part)}", self._chunk, ctx, call, part, start)
            results += made["results"]
            failures += len(made["failed"])
            failed += made["failed"][: MAX_FAILURES_LISTED - len(failed)]
            if time.monotonic() >= reported_at + REPORT_EVERY:
                reported_at = time.monotonic()
                ctx.report_progress(100 * (start + len(part)) / total, f"{start + len(part)} of {total}")
        return {"done": total - failures, "failed": failed} | ({"results": results} if self.collect else {})

    def _chunk(self, ctx: Context, call: Callable[[Any, Any], Any], part: list[Any], start: int) -> dict[str, Any]:
        results: list[Any] = []
        failed: list[dict[str, Any]] = []
        for number, item in enumerate(part, start):
            ctx.check_cancelled()
            try:
                value = call(ctx, item)
            except (LeaseLost, StoreUnavailableError, TaskTimeout):
                raise  # not the item's fault
            except Exception as error:
                if self.on_error == "stop":
                    raise
                value = None
                failed.append({"item": number, "error": _text_of(error)})
            if self.collect:
                results.append(value)
        return {"results": results, "failed": failed}

    def _called(self, ctx: Context) -> Callable[[Any, Any], Any]:
        allowed = section(ctx.settings, "batch").get("functions") or ()
        if self.function not in allowed:
            raise PermanentError(
                f'{self.function} may not be called: add it to [batch] functions = ["{self.function}"]'
            )
        function: Callable[[Any, Any], Any] = imported(self.function)
        return function


def _digest(part: list[Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(part)).hexdigest()[:16]


def _text_of(error: Exception) -> str:
    """What is stored of it: no halves of surrogate pairs, which the name of a file may have."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # a user's error whose text cannot be made
        text = type(error).__name__
    return text[:500].encode("utf-8", "replace").decode()
