"""``on_end`` and ``ends``: a program is called when tasks end, in whatever process, each once, late commits too."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import ConfigError, PermanentError, Scheduler, TaskState
from scheduler.client import completions
from scheduler.client.info import TaskInfo
from scheduler.ports import SECOND
from scheduler.store.read.recent_completions import OVERLAP, EndsReader, Wanted
from support.bench import Bench, Soft, Step
from support.databases import Database
from support.fleet import step, until

PATIENCE = 30.0


class Seen:
    """A callback that notes what it was called with."""

    def __init__(self) -> None:
        self.infos: queue.Queue[TaskInfo] = queue.Queue()

    def __call__(self, info: TaskInfo) -> None:
        self.infos.put(info)

    def next(self) -> TaskInfo:
        return self.infos.get(timeout=PATIENCE)

    def ids(self, count: int) -> list[int]:
        return [self.next().id for _ in range(count)]


class Ours:
    """Schedulers with real clocks and threads on the test's database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.made: list[Scheduler] = []

    def __call__(self, **options: Any) -> Scheduler:
        jobs = Scheduler(self.url, **options)
        jobs.register(Step)
        jobs.state = self
        self.made.append(jobs)
        return jobs

    def play(self, name: str, ctx: Any) -> str:
        if name.startswith("bad"):
            raise PermanentError(name)
        return name


@pytest.fixture
def schedulers(database: Database) -> Iterator[Ours]:
    made = Ours(database.url)
    yield made
    for jobs in made.made:
        jobs.close()


def test_a_program_is_called_for_what_another_one_runs(schedulers: Ours) -> None:
    program, worker = schedulers(), schedulers()
    done, mine, wrong = Seen(), Seen(), Seen()
    before = program.task(Step("before")).schedule()
    worker.start()
    program.result(before, timeout=PATIENCE)
    program.on_end(done)
    program.on_end(mine, correlation="order-1")
    program.on_end(wrong, kind="Other")
    good = program.task(Step("good")).correlation("order-1").schedule()
    bad = program.task(Step("bad")).schedule()
    assert {(info.id, info.state) for info in (done.next(), done.next())} == {
        (good, TaskState.SUCCESS),
        (bad, TaskState.DEAD),
    }
    info = mine.next()
    assert (info.id, info.kind, info.result) == (good, "Step", "good")
    cancelled = program.task(Step("later")).after(3600).schedule()
    program.cancel_task(cancelled)
    assert done.next().state is TaskState.CANCELLED
    program.close()
    for seen in (done, mine, wrong):
        assert seen.infos.empty()
    assert not [t for t in threading.enumerate() if t.name.startswith("schedd-on-end")]


def test_it_is_woken_and_does_not_poll(schedulers: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "WOKEN_POLL", 600.0)
    program, worker = schedulers(), schedulers()
    worker.start()
    seen = Seen()
    subscription = program.on_end(seen)
    until(lambda: subscription._listener is not None and subscription._listener.works)
    if not worker.database.path:  # engines look every two seconds whether there is a subscriber
        until(lambda: getattr(worker.engine.notifier, "_ends_wanted", False))
    for number in range(3):
        task = program.task(Step(str(number))).schedule()
        assert seen.next().id == task
    subscription.close()
    assert not subscription.active


def test_in_the_engines_own_process_as_a_decorator(schedulers: Ours) -> None:
    jobs = schedulers()
    seen = Seen()

    @jobs.on_end(kind="Step")
    def ended(info: TaskInfo) -> None:
        seen(info)
        raise ValueError("nothing comes of it")

    with jobs:
        ids = [jobs.task(Step(str(n))).schedule() for n in range(20)]
        jobs.wait(ids, timeout=PATIENCE)
    assert sorted(seen.ids(20)) == sorted(ids), "also what ended last, before the scheduler was closed"
    assert callable(ended)


def test_unsubscribed_it_is_not_called_and_from_within_too(schedulers: Ours) -> None:
    jobs = schedulers()
    calls: list[int] = []
    closed = threading.Event()

    def once(info: TaskInfo) -> None:
        calls.append(info.id)
        subscription.close()
        closed.set()

    subscription = jobs.on_end(once)
    other = Seen()
    jobs.on_end(other)
    jobs.start()
    first = jobs.task(Step("a")).schedule()
    assert closed.wait(PATIENCE)
    second = jobs.task(Step("b")).schedule()
    assert other.ids(2) == [first, second]
    assert calls == [first]


def test_what_ends_while_it_is_busy_is_not_missed(schedulers: Ours) -> None:
    jobs = schedulers()
    seen, go, busy = Seen(), threading.Event(), threading.Event()

    def slow(info: TaskInfo) -> None:
        busy.set()
        assert go.wait(PATIENCE)
        seen(info)

    jobs.on_end(slow)
    jobs.start()
    first = jobs.task(Step("first")).schedule()
    assert busy.wait(PATIENCE)
    with jobs.batch() as batch:
        for number in range(1200):
            batch.task(Step(str(number)))
    jobs.wait(batch.ids, timeout=PATIENCE)
    go.set()
    assert sorted(seen.ids(1201)) == sorted([first, *batch.ids])
    assert seen.infos.empty()


def test_a_coroutine_function_and_an_async_iterator(schedulers: Ours) -> None:
    jobs = schedulers()
    jobs.start()

    async def program() -> tuple[list[int], list[int], list[int]]:
        called: list[int] = []
        all_called = asyncio.Event()

        async def ended(info: TaskInfo) -> None:
            await asyncio.sleep(0)
            called.append(info.id)
            if len(called) == 5:
                all_called.set()

        subscription = jobs.on_end(ended)
        got: list[int] = []
        async with jobs.ends(kind="Step") as found:
            ids = [int(await jobs.task(Step(str(n))).schedule_async()) for n in range(5)]
            async for info in found:
                got.append(info.id)
                if len(got) == 5:
                    break
        async with asyncio.timeout(PATIENCE):
            await all_called.wait()
        subscription.close()
        return sorted(ids), sorted(got), sorted(called)

    ids, got, called = asyncio.run(program())
    assert ids == got == called


def test_mistakes(schedulers: Ours) -> None:
    jobs = schedulers()

    async def coroutine(info: TaskInfo) -> None: ...

    with pytest.raises(ConfigError, match="where an event loop runs"):
        jobs.on_end(coroutine)
    with pytest.raises(ConfigError, match="needs a function"):
        jobs.on_end(3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="kind must be a text"):
        jobs.on_end(lambda info: None, kind=3)  # type: ignore[call-overload]


# How ends are found: step by step


def found(bench: Bench, reader: EndsReader) -> list[int]:
    with bench.jobs.database.read() as tx:
        return [task_id for _, task_id in reader.look(tx)]


def begin(bench: Bench, wanted: Wanted | None = None) -> EndsReader:
    reader = EndsReader(wanted or Wanted())
    with bench.jobs.database.read() as tx:
        reader.begin(tx)
    return reader


def test_each_end_is_found_once_in_the_order_of_the_ends(bench: Bench) -> None:
    bench.ended("success")
    reader = begin(bench)
    assert found(bench, reader) == [], "what had ended before"
    ids = []
    for number in range(30):
        ids.append(int(bench.step(f"s{number}").schedule()))
        bench.advance(1)
        if number % 7 == 6:
            assert found(bench, reader) == ids[number - 6 :]
    assert found(bench, reader) == ids[28:]
    assert len(reader._seen) <= OVERLAP // SECOND + 2, "what is long past is not remembered"
    for end in ("failed", "cancelled", "skipped", "dead"):
        task = bench.ended(end, kind=Step if end != "failed" else Soft)
        assert task in found(bench, reader), end
        assert task not in found(bench, reader), end


def test_a_task_that_ends_again_is_found_again(bench: Bench) -> None:
    reader = begin(bench)
    (dead,) = bench.die("a")
    assert found(bench, reader) == [dead]
    bench.script.failing.clear()
    bench.clock.advance(1)
    bench.jobs.retry_task(dead)
    bench.drain()
    assert found(bench, reader) == [dead]


def test_an_end_that_its_worker_records_long_after(bench: Bench) -> None:
    """The database was away for that worker only, and others went on: the row says when the handler ended."""
    task = int(bench.step("late").schedule())
    step(bench.jobs)
    reader = begin(bench)
    other = bench.worker()
    for number in range(5):
        bench.clock.advance(5)
        step(other)
        bench.execute("UPDATE schedd_workers SET lease_until = :until", until=2**60)
        now = int(other.task(Step(f"{number}")).schedule())
        bench.execute(
            "UPDATE schedd_tasks SET state = 6, finished_at = :at WHERE id = :id", at=other.database.now(), id=now
        )
        assert found(bench, reader) == [now]
    began = bench.clock.now() - 25 * SECOND
    bench.execute(
        "UPDATE schedd_tasks SET state = 6, worker = NULL, finished_at = :at WHERE id = :id", at=began, id=task
    )
    assert found(bench, reader) == [task]
    assert found(bench, reader) == []


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_an_end_in_a_transaction_that_commits_long_after(schedulers: Ours) -> None:
    """A caller's own transaction stores a task that ends at once, since what it depends on has failed; others go on.

    SQLite has one writer: there nothing else is committed meanwhile.
    """
    jobs = schedulers()
    jobs.start()
    bad = jobs.task(Step("bad")).schedule()
    jobs.wait(bad, timeout=PATIENCE)
    reader = EndsReader(Wanted())
    with jobs.database.read() as tx:
        reader.begin(tx)
    connection = jobs.database.open().connect()
    with connection, connection.begin():
        late = jobs.task(Step("child")).depend_on(bad).schedule(connection=connection)
        for number in range(3):
            other = jobs.task(Step(str(number))).schedule()
            jobs.wait(other, timeout=PATIENCE)
            with jobs.database.read() as tx:
                # As if each look came a minute later: what is known of the transaction is when it began.
                assert [i for _, i in reader.look(tx.at(tx.now + number * 60 * SECOND))] == [other]
    with jobs.database.read() as tx:
        assert [i for _, i in reader.look(tx)] == [late]


def test_two_writers_that_commit_in_another_order_than_they_ended(schedulers: Ours) -> None:
    """Two real workers and a caller that cancels; ends are found while all of them write."""
    program, one, two = schedulers(), schedulers(), schedulers()
    seen = Seen()
    with program.batch() as batch:
        for number in range(300):
            batch.task(Step(f"{'bad' if number % 5 == 0 else 'good'} {number}"))
    program.on_end(seen)
    one.start()
    two.start()
    later = [program.task(Step("later")).after(3600).schedule() for _ in range(20)]
    for task in later:
        program.cancel_task(task)
    program.wait([*batch.ids, *later], timeout=60)
    assert sorted(seen.ids(320)) == sorted([*batch.ids, *later])
    assert seen.infos.empty()
