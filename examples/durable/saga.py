"""A trip of three bookings with three companies: all of them, or none."""

from typing import Any

from scheduler import Context, RetryPolicy, Task


class Trip(Task, retry=RetryPolicy(min_wait=1, max_attempts=10)):
    """A trip. A step returns a refusal as its value, so that every attempt takes the same way back.

    What raises (a company that does not answer) is no refusal: it is tried again, from the step that failed.
    """

    person: str

    def run(self, ctx: Context) -> Any:
        agency = ctx.state
        booked: list[tuple[str, str]] = []
        for what in ("flight", "hotel", "car"):
            answer = ctx.step(f"book {what}", agency.book, what, self.person)
            if "refused" in answer:
                for earlier, number in reversed(booked):
                    ctx.step(f"cancel {earlier}", agency.cancel, earlier, number)
                return {"booked": [], "refused": f"{what}: {answer['refused']}"}
            booked.append((what, answer["number"]))
        return {"booked": [number for _, number in booked]}
