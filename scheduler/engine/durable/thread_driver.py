"""Runs durable calls of handlers in threads; async_driver.py does it for coroutines."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from scheduler.engine.durable.calls import Durable, suspend
from scheduler.engine.durable.effects import Call, Read, Request, Steps, Suspend
from scheduler.errors import PermanentError

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


def _perform(durable: Durable, effect: Request | Read | Call | Suspend) -> Any:
    attempt, runtime = durable.attempt, durable.runtime
    if isinstance(effect, Request):
        return runtime.request(attempt, effect.what, effect.args).result()
    if isinstance(effect, Read):
        return runtime.load(attempt, effect.what, effect.args)
    if isinstance(effect, Call):
        returned = effect.function(*effect.args, **effect.kwargs)
        if inspect.isawaitable(returned):
            if inspect.iscoroutine(returned):
                returned.close()
            raise PermanentError("an async function in a step needs an async handler: async def run(self, ctx)")
        return returned
    raise suspend(attempt, effect.until)
