"""Tests that wait for nothing: the clock is moved by hand, and drain() runs what is due, in this thread."""

from scheduler import Context, RetryPolicy, Scheduler, Task, TaskState
from scheduler.testing import FakeClock, assert_scheduled, drain


class Remind(Task, retry=RetryPolicy(min_wait=60, jitter=0, max_attempts=2)):
    who: str

    def run(self, ctx: Context) -> str:
        if ctx.attempt == 1:
            raise ConnectionError("the mail server is away")
        return f"reminded {self.who}"


def test_a_reminder_is_sent_a_day_later_and_tried_twice() -> None:
    clock = FakeClock()
    jobs = Scheduler.for_testing(clock=clock)
    jobs.register(Remind)
    reminder = jobs.task(Remind("alice")).after(86400).schedule()

    assert_scheduled(jobs, "Remind", who="alice")
    assert drain(jobs) == 0  # nothing is due yet

    clock.advance(86400)
    assert drain(jobs) == 1
    assert jobs.get_task_status(reminder) is TaskState.RETRY

    clock.advance(60)
    drain(jobs)
    assert jobs.result(reminder, timeout=0) == "reminded alice"
    jobs.close()
