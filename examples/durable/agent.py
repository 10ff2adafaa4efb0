"""An agent: a model is asked what to do, tools do it, until it has an answer; a person allows what is dangerous."""

import asyncio
from datetime import timedelta
from typing import Any

from scheduler import AsyncContext, PermanentError, RetryPolicy, Task


class Agent(Task, retry=RetryPolicy(min_wait=1, max_attempts=10)):
    """Every answer of the model and of a tool is recorded: none is paid for twice, whatever fails in between."""

    goal: str
    turns: int = 20

    async def run(self, ctx: AsyncContext) -> Any:
        app = ctx.state
        messages: list[dict[str, Any]] = [{"role": "user", "content": self.goal}]
        for _ in range(self.turns):
            said = await ctx.step("think", app.model, messages)
            messages.append({"role": "assistant", **said})
            if not said["calls"]:
                return said["content"]
            found = await asyncio.gather(*[self.use(ctx, call) for call in said["calls"]])
            messages += [{"role": "tool", "content": one} for one in found]
        raise PermanentError(f"no answer after {self.turns} turns")

    async def use(self, ctx: AsyncContext, call: dict[str, Any]) -> Any:
        """One call of a tool. They run side by side, so each has a name of its own."""
        if call["tool"] in ctx.state.dangerous:
            try:
                allowed = await ctx.await_event(f"allow/{ctx.id}/{call['id']}", timeout=timedelta(days=1))
            except TimeoutError:
                allowed = False
            if not allowed:
                return "not allowed"
        return await ctx.step(f"tool {call['id']}", ctx.state.tools[call["tool"]], **call["arguments"])
