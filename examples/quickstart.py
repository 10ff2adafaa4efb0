"""Two tasks, one after the other, scheduled and run in this process."""

from scheduler import Context, Scheduler, Task, task


class Greet(Task):
    name: str

    def run(self, ctx: Context) -> str:
        return f"Hello {self.name}"


@task
def shout(ctx: Context, mark: str = "!") -> str:
    [greeting] = ctx.results().values()  # of the tasks that this one depends on, by id
    return str(greeting).upper() + mark


def main() -> None:
    jobs = Scheduler("sqlite:///quickstart.db")  # made when it is first used
    jobs.register(Greet)
    jobs.register(shout)
    with jobs:  # runs tasks until the end of the block
        greeting = jobs.task(Greet("world")).schedule()
        shouted = jobs.task(shout, mark="!!").depend_on(greeting).schedule()
        print(jobs.result(shouted, timeout=10))


if __name__ == "__main__":
    main()
