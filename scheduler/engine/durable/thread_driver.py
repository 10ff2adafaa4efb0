"""Runs durable calls of handlers in threads; async_driver.py does it for coroutines."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.engine.durable.calls import Durable, suspend
from scheduler.engine.durable.effects import Await, Effect, FunctionEffect, Read, RequestEffect, SendEffect, Steps
from scheduler.errors import PermanentError

if TYPE_CHECKING:
    from scheduler.engine.attempt.attempt import Attempt

T = TypeVar("T")


def drive(durable: Durable, steps: Steps[T]) -> T:
    """Perform the effects of a durable call, and return its value."""
    try:
        effect = next(steps)
        while True:
            try:
                answer = _perform(durable, effect)
            except BaseException as error:
                effect = steps.throw(error)
            else:
                effect = steps.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value


def _perform(durable: Durable, effect: Effect) -> Any:
    attempt, runtime = durable.attempt, durable.runtime
    if isinstance(effect, RequestEffect):
        return runtime.request(attempt, effect.what, effect.args).result()
    if isinstance(effect, SendEffect):
        return runtime.request(attempt, effect.what, effect.args)
    if isinstance(effect, Await):
        return effect.reply.result()
    if isinstance(effect, Read):
        return runtime.load(attempt, effect.what, effect.args)
    if isinstance(effect, FunctionEffect):
        returned = effect.function(*effect.args, **effect.kwargs)
        if inspect.isawaitable(returned):
            if inspect.iscoroutine(returned):
                returned.close()
            raise PermanentError("an async function in a step needs an async handler: async def run(self, ctx)")
        return returned
    raise suspend(attempt, effect.until)


def settle(attempt: Attempt, *, quietly: bool = False) -> None:
    """Wait for the records of grouped steps. Raises what their replies carry, unless the handler has raised."""
    durable = attempt.durable
    while isinstance(durable, Durable) and durable.unsettled:
        try:
            drive(durable, durable.settle())
        except BaseException:
            if not quietly:
                raise
