"""A report that another service takes its time for: order it, look now and then, fetch it."""

from typing import Any

from scheduler import Context, PermanentError, RetryPolicy, Task


class Report(Task, retry=RetryPolicy(min_wait=1, max_attempts=5)):
    """Between two looks it takes no slot: thousands may wait. A restart in between orders nothing twice."""

    month: str

    def run(self, ctx: Context) -> Any:
        service = ctx.state
        ticket = ctx.step("order", service.order, self.month)
        wait = 1.0
        for _ in range(100):
            status = ctx.step("look", service.status, ticket)  # recorded as look, look#2, look#3
            if status == "ready":
                return ctx.step("fetch", service.fetch, ticket)
            if status == "failed":
                raise PermanentError(f"no report for {self.month}")
            ctx.sleep_for(wait)
            wait = min(2 * wait, 60.0)
        raise PermanentError(f"the report for {self.month} is still not ready")
