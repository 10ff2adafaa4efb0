"""Durable calls of handlers in threads; see async_durable.py for coroutines."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from scheduler.engine.durable import Durable, suspend
from scheduler.engine.durable_plan import Ask, Block, Call, Load, Plan
from scheduler.errors import PermanentError

T = TypeVar("T")


def drive(durable: Durable, plan: Plan[T]) -> T:
    """Carry out a call for a handler in a thread."""
    try:
        effect = next(plan)
        while True:
            try:
                answer = _perform(durable, effect)
            except BaseException as error:
                effect = plan.throw(error)
            else:
                effect = plan.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value


def _perform(durable: Durable, effect: Ask | Load | Call | Block) -> Any:
    attempt, runtime = durable.attempt, durable.runtime
    if isinstance(effect, Ask):
        return runtime.request(attempt, effect.what, effect.args).result()
    if isinstance(effect, Load):
        return runtime.load(attempt, effect.what, effect.args)
    if isinstance(effect, Call):
        made = effect.function(*effect.args, **effect.kwargs)
        if inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise PermanentError("an async function in a step needs an async handler: async def run(self, ctx)")
        return made
    raise suspend(attempt, effect.until)
