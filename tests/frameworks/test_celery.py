"""Programs written for Celery: decorators, calls, signatures, results and schedules of ``scheduler.celery``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import (
    ConfigError,
    InvalidScheduleError,
    PayloadError,
    RetryPolicy,
    Scheduler,
    SchedulerError,
    TaskCancelledError,
    TaskFailedError,
    TaskState,
    UnknownTaskError,
)
from scheduler.celery import AsyncResult, Celery, GroupResult, Task, apps, chain, chord, crontab, group, shared_task
from scheduler.testing import FakeClock, drain
from support.databases import Database, one_database

pytestmark = pytest.mark.both_databases
EXAMPLE = Path(__file__).parents[2] / "examples" / "celery_shop.py"
APART = """
@app.task(bind=True, isolation="process", time_limit=100)
def apart(self: Task, item: str) -> list[str]:
    return [str(self.request.retries), price.delay(item).id]


"""
seen: list[Any] = []


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app(database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    monkeypatch.setattr(apps, "_shared", {})
    monkeypatch.setattr(apps, "_made", [])
    seen.clear()
    jobs = Scheduler.for_testing(url=database.url, clock=clock)
    yield Celery("shop", scheduler=jobs)
    jobs.close()


def added(x: int, y: int = 0) -> int:
    return x + y


def summed(numbers: list[int], more: int = 0) -> int:
    return sum(numbers) + more


def noted(*, word: str) -> None:
    seen.append(word)


def failing() -> None:
    raise ValueError("no")


def one(app: Celery, function: Callable[..., Any], **options: Any) -> Task:
    return app.task(name=f"shop.{function.__name__}", **options)(function)


def finished(app: Celery, result: AsyncResult) -> Any:
    drain(app.scheduler)
    return result.get(timeout=0)


# calls and results


def test_delay_and_the_states_of_a_result(app: Celery) -> None:
    add = app.task(added)
    result = add.delay(2, y=3)
    assert (add.name, add(2, 3), result.state, result.ready(), result.result) == (
        f"{__name__}.added",
        *(5, "PENDING", False, None),
    )
    assert finished(app, result) == 5
    again = app.AsyncResult(result.id)
    assert (again, again.state, again.status, again.ready()) == (result, "SUCCESS", "SUCCESS", True)
    assert (again.successful(), again.failed(), again.result, AsyncResult(int(result.id)).get()) == (True, False, 5, 5)


def test_failure_and_revoke(app: Celery) -> None:
    fail, add = one(app, failing), one(app, added)
    failed, revoked = fail.delay(), add.delay(1)
    revoked.revoke(terminate=True)
    with pytest.raises(TaskFailedError, match="no"):
        finished(app, failed)
    assert (failed.state, failed.failed(), str(failed.result).partition(":")[0]) == (
        *("FAILURE", True),
        f"task {failed.id} failed",
    )
    assert revoked.state == "REVOKED"
    with pytest.raises(TaskCancelledError):
        revoked.get()
    assert isinstance(revoked.get(propagate=False), TaskCancelledError)


def test_an_id_that_is_none(app: Celery) -> None:
    with pytest.raises(UnknownTaskError):
        _ = app.AsyncResult("999").state
    with pytest.raises(ConfigError, match=r"a number such as 42, not '7c1e-"):
        app.AsyncResult("7c1e-")


def test_options_of_a_call(app: Celery, clock: FakeClock) -> None:
    add, jobs = one(app, added, queue="sums"), app.scheduler
    later = add.apply_async((1,), {"y": 2}, countdown=60, queue="mail", priority="high", headers={"a": 1}, key="k")
    at = add.apply_async([1], eta=datetime(2026, 1, 2, tzinfo=UTC))
    late = add.apply_async((1,), countdown=100, expires=30)
    until = add.apply_async((1,), countdown=100, expires=datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    info = jobs.get_task(int(later.id))
    assert (info.queue, info.priority.label, info.key, dict(info.headers)) == ("mail", "high", "k", {"a": 1})
    assert jobs.get_task(int(at.id)).queue == "sums"
    drain(jobs)
    clock.advance(61)
    drain(jobs)
    assert [one.state for one in (later, at, late, until)] == ["SUCCESS", "PENDING", "REVOKED", "REVOKED"]
    clock.advance(timedelta(days=1))
    assert finished(app, at) == 1


def test_a_call_in_the_callers_transaction(app: Celery, database: Database) -> None:
    add = one(app, added)
    engine = sa.create_engine(app.scheduler.database.url)
    with engine.connect() as connection:
        add.apply_async((1,), connection=connection)
        connection.rollback()
        kept = (add.s(1) | add.s(2)).apply_async(connection=connection)
        connection.commit()
    engine.dispose()
    assert finished(app, kept) == 3
    assert len(app.scheduler.list_tasks()) == 2


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda add: add.delay(), PayloadError, "missing a required argument: 'x'"),
        (lambda add: add.delay("a"), PayloadError, "Expected `int`, got `str`"),
        (lambda add: add.delay(1, 2, 3), PayloadError, "too many positional arguments"),
        (lambda add: add.delay(object()), PayloadError, "payload of shop.added"),
        (lambda add: add.apply_async((1,), task_id="a"), ConfigError, "task_id: take key="),
        (lambda add: add.apply_async((1,), priority=5), ConfigError, "priority must be high, medium or low, not 5"),
        (lambda add: add.apply_async((1,), serializer="pickle"), ConfigError, "payloads are JSON"),
        (lambda add: add.apply_async((1,), exchange="x"), ConfigError, "exchange: take queue="),
        (
            lambda add: add.apply_async((1,), shadow="x"),
            ConfigError,
            "shadow: there is no such option; there are con",
        ),
        (lambda add: add.apply_async((1,), eta=datetime(2026, 1, 1)), InvalidScheduleError, "at"),  # noqa: DTZ001
        (lambda add: add.apply_async((1,), expires=datetime(2025, 1, 1, tzinfo=UTC)), ConfigError, "expires is past"),
        (lambda add: add.apply_async((1,), link=add), ConfigError, r"a signature is needed, such as task\.s\("),
        (lambda add: add.apply_async((1,), link_error=add.s()), ConfigError, r"write shop.added.si\("),
        (lambda add: chain(add.s(1), add.s(1, 2)).delay(), PayloadError, "too many positional arguments"),
        (lambda add: chain(add.s(1), add.s().set(countdown=5)).delay(), ConfigError, "countdown would not count"),
        (lambda add: chain(), ConfigError, "a chain needs a task"),
        (lambda add: group(add, add), ConfigError, "a signature is needed"),
    ],
)
@one_database
def test_calls_that_are_refused(app: Celery, call: Callable[[Task], Any], error: type[Exception], text: str) -> None:
    add = one(app, added)
    with pytest.raises(error, match=text):
        call(add)
    assert app.scheduler.list_tasks() == []


# what a function is told, and retries


def test_bind_request_and_retry(app: Celery, clock: FakeClock) -> None:
    @app.task(bind=True, name="shop.fetch", max_retries=2, default_retry_delay=30)
    def fetch(self: Task, url: str) -> list[Any]:
        seen.append((self.request.id, self.request.retries, self.ctx.attempt))
        if self.request.retries < 2:
            try:
                raise ConnectionError("down")
            except ConnectionError as error:
                raise self.retry(exc=error, countdown=5 if self.request.retries else None)  # noqa: B904
        return [self.name, url, self.request.task]

    result = fetch.delay("u")
    drain(app.scheduler)
    assert result.state == "RETRY"
    assert "down" in str(app.scheduler.get_last_error(int(result.id)))
    clock.advance(29)
    assert drain(app.scheduler) == 0
    clock.advance(1)
    assert drain(app.scheduler) == 1
    clock.advance(5)
    assert finished(app, result) == ["shop.fetch", "u", "shop.fetch"]
    assert seen == [(result.id, 0, 1), (result.id, 1, 2), (result.id, 2, 3)]
    assert (fetch.request.id, fetch.request.retries, fetch.max_retries) == (None, 0, 2)
    with pytest.raises(ConfigError, match=r"shop\.fetch is not run by a worker"):
        _ = fetch.ctx


def test_the_last_retry_raises_the_error(app: Celery) -> None:
    @app.task(bind=True, name="shop.lost", max_retries=1, default_retry_delay=0)
    def lost(self: Task) -> None:
        try:
            raise KeyError("gone")
        except KeyError:
            self.retry()

    @app.task(bind=True, name="shop.wrong")
    def wrong(self: Task) -> None:
        self.retry(max_retries=7)

    first, second = lost.delay(), wrong.delay()
    with pytest.raises(TaskFailedError, match="KeyError: 'gone'"):
        finished(app, first)
    assert app.scheduler.get_task(int(first.id)).attempt == 2
    app.scheduler.retry_task(int(first.id))  # by hand: the retries count anew
    drain(app.scheduler)
    assert app.scheduler.get_task(int(first.id)).attempt == 4
    with pytest.raises(TaskFailedError, match=r"self\.retry takes countdown and exc, not max_retries"):
        second.get()


def test_autoretry(app: Celery, clock: FakeClock) -> None:
    def flaky(error: str) -> None:
        seen.append(error)
        raise {"ConnectionError": ConnectionError, "ValueError": ValueError}[error]("no")

    task = one(app, flaky, autoretry_for=(ConnectionError,), retry_backoff=2, retry_jitter=False, max_retries=3)
    tried, refused = task.delay("ConnectionError"), task.delay("ValueError")
    for wait in (0, 2, 4, 8):
        clock.advance(wait)
        drain(app.scheduler)
    assert (seen, tried.state, refused.state) == (
        ["ConnectionError", "ValueError"] + 3 * seen[:1],
        "FAILURE",
        "FAILURE",
    )


@one_database
def test_options_become_ours(app: Celery) -> None:
    plain = app.task(added).task_options
    assert plain.retry is None
    given = {"rate_limit": "10/m", "time_limit": 30, "isolation": "process", "acks_late": True, "queue": "q"}
    options = Task(added, given).task_options
    assert (str(options.rate_limit), options.timeout, options.isolation, options.queue) == (
        *("10/min", 30_000_000),
        *("process", "q"),
    )
    assert str(app.task(name="b", rate_limit=5)(added).task_options.rate_limit) == "5/s"

    def retry(**given: Any) -> RetryPolicy | None:
        return app.task(name=f"r{len(app.tasks)}", **given)(added).task_options.retry

    fixed = RetryPolicy(180, timedelta(days=3660), 4, jitter=0, strategy="fixed", retry_on=OSError)
    assert retry(autoretry_for=(OSError,)) == fixed
    assert retry(autoretry_for=(OSError,), retry_kwargs={"max_retries": 3, "countdown": 180}) == fixed
    assert retry(autoretry_for=OSError, max_retries=None, retry_backoff=True) == RetryPolicy(
        1, 600, None, jitter=0.1, retry_on=OSError
    )
    own = RetryPolicy(max_attempts=3)
    kept = app.task(name="own", bind=True, retry=own)(lambda self: None)
    assert (kept.task_options.retry, kept.max_retries) == (own, 2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"time_limit": 5}, 'task a: time_limit: add isolation="process"'),
        ({"soft_time_limit": 5}, "soft_time_limit: take timeout="),
        ({"acks_late": False}, "acks_late: a task is acknowledged after its run, always"),
        ({"ignore_result": True}, "ignore_result: leave it out: a result is kept for 24 hours"),
        ({"serializer": "pickle"}, "serializer: payloads are JSON"),
        ({"base": object}, "base: pass around_run="),
        ({"retry": RetryPolicy(), "max_retries": 3}, "retry= says it all: leave max_retries out"),
        ({"retry_kwargs": {"jitter": 3}}, "retry_kwargs takes max_retries and countdown, not jitter"),
        ({"max_retries": -1}, "max_retries must be a whole number from 0"),
        ({"rate_limit": "10/fortnight"}, 'rate_limit must look like "100/min"'),
        ({"kind": "x"}, "kind: there is no such option"),
        ({"retry_delay": 3}, "retry_delay: there is no such option; there are autoretry_for, bind"),
    ],
)
@one_database
def test_options_that_are_refused(app: Celery, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        app.task(name="a", **options)(added)


@one_database
def test_functions_that_are_refused(app: Celery) -> None:
    with pytest.raises(ConfigError, match="bind=True passes the task: write def failing"):
        app.task(bind=True)(failing)
    with pytest.raises(ConfigError, match=r"parameter 'args' must be named"):
        app.task(name="star")(lambda *args: None)
    with pytest.raises(ConfigError, match=r"the database is the queue: write sqlite:///jobs.db .*not redis:"):
        Celery("shop", broker="redis://localhost")
    with pytest.raises(ConfigError, match=r"Celery\(\): backend: leave it out"):
        Celery("shop", backend="rpc://")
    with pytest.raises(ConfigError, match=r"app.conf: task_serializer: payloads are JSON"):
        app.conf.update({"task_serializer": "pickle"})
    with pytest.raises(ConfigError, match=r"app.conf: broker_url: there is no such option; there are beat_sch"):
        app.conf.update(broker_url="x")
    app.conf.update(task_serializer="json", accept_content=["json"], task_acks_late=True, timezone="Europe/Berlin")
    assert app.conf.timezone == "Europe/Berlin"


def test_an_async_function_and_a_shared_one(app: Celery) -> None:
    @shared_task(bind=True, name="shop.later")
    async def later(self: Task, ctx: str) -> list[Any]:
        await self.ctx.report_progress(50)
        return [ctx, self.request.retries]

    @shared_task
    def plain() -> str:
        return AsyncResult(1).id

    assert finished(app, later.delay("a parameter of that name")) == ["a parameter of that name", 0]
    assert finished(app, plain.delay()) == "1"
    assert plain.app is app


# signatures


def test_a_chain_passes_results_as_first_argument(app: Celery) -> None:
    add, note = one(app, added), one(app, noted)
    result = chain(add.s(1, 2), add.s(10), add.s(y=100)).apply_async()
    assert finished(app, result) == 113
    assert finished(app, (add.s(1) | add.s(2) | add.si(7, 1)).delay(5)) == 8
    assert finished(app, add.s(1).delay(4)) == 5
    assert add.s(1)(4) == 5
    immutable = add.s(1) | note.si(word="after")
    assert finished(app, immutable.delay()) is None
    assert seen == ["after"]


def test_a_group_and_a_chord_keep_their_order(app: Celery) -> None:
    add, total = one(app, added), one(app, summed)
    several = group(add.s(i, 1) for i in range(12)).apply_async()
    assert (len(several), several.ready(), several[0].state) == (12, False, "PENDING")
    joined = chord([add.s(i) for i in range(3)])(total.s(more=10))
    listed = app.task(name="shop.listed")(lambda values: values)
    in_order = (group([add.s(3), add.s(1), add.s(2) | add.s(5)]) | listed.s()).delay()
    empty = chord([], total.s()).delay()
    drain(app.scheduler)
    assert several.get(timeout=0) == list(range(1, 13))
    assert (several.ready(), several.successful(), several.failed(), several.completed_count()) == (
        *(True, True),
        *(False, 12),
    )
    assert (joined.get(0), in_order.get(0), empty.get(0)) == (13, [3, 1, 7], 0)
    assert GroupResult([]).get() == []


def test_a_group_in_the_middle_and_at_the_end(app: Celery) -> None:
    add, total = one(app, added), one(app, summed)
    last = (add.s(1, 1) | group(add.s(10), add.s(20)) | total.s() | group(add.s(i) for i in range(2))).delay()
    drain(app.scheduler)
    assert isinstance(last, GroupResult)
    assert last.get(timeout=0) == [34, 35]


def test_a_part_that_fails_ends_what_follows(app: Celery) -> None:
    add, fail, total, note = one(app, added), one(app, failing), one(app, summed), one(app, noted)
    joined = chord([add.s(1), fail.s()])(total.s().set(link_error=note.si(word="chord")))
    chained = chain(fail.si(), add.si(1, 1)).apply_async(link_error=note.si(word="chain"), link=note.si(word="never"))
    drain(app.scheduler)
    assert (joined.state, chained.state, sorted(seen)) == ("FAILURE", "FAILURE", ["chain", "chord"])


def test_links(app: Celery) -> None:
    add, fail, note = one(app, added), one(app, failing), one(app, noted)

    @app.task(bind=True, name="shop.told")
    def told(self: Task) -> None:
        seen.append(list(self.ctx.dependency_failures()))

    add.apply_async((1, 2), link=[add.s(10), note.si(word="linked")], link_error=note.si(word="never"))
    failed = fail.apply_async(link_error=told.si())
    drain(app.scheduler)
    results = sorted(app.scheduler.result(t.id) for t in app.scheduler.list_tasks(kind="shop.added"))
    assert results == [3, 13]
    assert sorted(seen, key=str) == [[int(failed.id)], "linked"]


def test_all_of_a_canvas_is_stored_or_nothing(app: Celery) -> None:
    add = one(app, added)
    with pytest.raises(PayloadError, match="missing a required argument"):
        group(add.s(1), add.s()).delay()
    with pytest.raises(SchedulerError):
        chain(add.s(1), one(app, failing).s()).delay()
    assert app.scheduler.list_tasks() == []


def test_a_task_stores_others(app: Celery) -> None:
    add = one(app, added)

    @app.task(name="shop.parent")
    def parent() -> str:
        return add.delay(2, 2).id

    assert app.AsyncResult(finished(app, parent.delay())).get() == 4


def test_calls_go_to_the_scheduler_that_has_registered_the_task(database: Database) -> None:
    own = Celery("own", broker="sqlite:///never-made.db")
    add, total = own.task(name="own.add")(added), own.task(name="own.total")(summed)
    jobs = Scheduler.for_testing(url=database.url, clock=FakeClock())
    jobs.register(add)  # as a daemon does with those that it finds in its modules
    result = chord([add.s(1), add.s(2)])(total.s())
    drain(jobs)
    assert (own.scheduler, result.get(timeout=0)) == (jobs, 3)
    assert not Path("never-made.db").exists()
    jobs.close()


# schedules


def test_beat_schedule_is_the_set_of_schedules(app: Celery, clock: FakeClock) -> None:
    one(app, added)
    app.conf.timezone = "Europe/Berlin"
    app.conf.beat_schedule = {
        "nightly": {
            "task": "shop.added",
            "schedule": crontab(minute=30, hour="2,14"),
            "args": (1,),
            "kwargs": {"y": 2},
        },
        "often": {"task": "shop.added", "schedule": 90.0, "args": (1,), "options": {"queue": "mail"}},
        "hourly": {"task": "shop.added", "schedule": timedelta(hours=1), "kwargs": {"x": 5}},
    }
    app.setup()
    listed = {one.name: one for one in app.scheduler.schedules.list()}
    assert sorted(listed) == ["hourly", "nightly", "often"]
    assert app.scheduler.schedules.next("nightly")[0] == datetime(2026, 1, 1, 1, 30, tzinfo=UTC)
    clock.advance(91)
    drain(app.scheduler)
    assert [(t.schedule, t.queue, t.state) for t in app.scheduler.list_tasks()] == [
        ("often", "mail", TaskState.SUCCESS)
    ]
    del app.conf.beat_schedule["often"]
    app.setup(app.scheduler)
    assert sorted(one.name for one in app.scheduler.schedules.list()) == ["hourly", "nightly"]


@pytest.mark.parametrize(
    ("entry", "error", "text"),
    [
        (
            {"task": "shop.gone", "schedule": 1},
            ConfigError,
            r"beat_schedule\['x'\]: there is no task 'shop.gone'",
        ),
        ({"task": "shop.added", "schedule": None, "args": (1,)}, InvalidScheduleError, "'x'.: .*seconds or a"),
        ({"task": "shop.added", "schedule": "61 * * * *", "args": (1,)}, InvalidScheduleError, "61"),
        ({"task": "shop.added", "schedule": 5, "args": ("a",)}, PayloadError, "Expected `int`"),
        ({"task": "shop.added", "schedule": 5, "relative": True}, ConfigError, "relative: there is no such option"),
        (
            {"task": "shop.added", "schedule": 5, "args": (1,), "options": {"countdown": 5}},
            InvalidScheduleError,
            "single tasks",
        ),
    ],
)
@one_database
def test_entries_that_are_refused(app: Celery, entry: dict[str, Any], error: type[Exception], text: str) -> None:
    one(app, added)
    app.conf.beat_schedule = {"x": entry}
    with pytest.raises(error, match=text):
        app.setup()
    assert app.scheduler.schedules.list() == []


def test_what_the_app_lacks_names_its_replacement(app: Celery) -> None:
    with pytest.raises(AttributeError, match=r"\[tasks\] modules"):
        app.autodiscover_tasks()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no 'nothing'$"):
        _ = app.nothing  # type: ignore[attr-defined]
    assert not hasattr(app, "control")


def test_a_function_that_takes_anything_is_refused_where_it_is_decorated() -> None:
    def anything(*args: int) -> None: ...

    with pytest.raises(ConfigError, match=r"parameter 'args' must be named; \*args"):
        shared_task(anything)


def test_a_task_that_cannot_be_registered_is_named_at_each_use(app: Celery, database: Database) -> None:
    def odd(x: Any) -> None: ...

    odd.__annotations__["x"] = "Nowhere"
    other = Celery("odd", broker=database.url)
    other.task(odd)
    for _ in range(2):
        with pytest.raises(ConfigError, match="odd"):
            _ = other.scheduler


def test_crontab() -> None:
    with pytest.raises(InvalidScheduleError, match="61"):
        crontab(minute=61)
    assert crontab() == "* * * * *"
    assert crontab(0, "*/3", day_of_week="mon, fri", month_of_year=[1, 7]) == "0 */3 * 1,7 mon,fri"
    with pytest.raises(ConfigError, match="day_of_month and day_of_week"):
        crontab(0, 0, day_of_week=1, day_of_month=1)


# whole programs


def test_without_a_broker_the_configuration_says_the_store(database: Database, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from scheduler.celery import shared_task\n@shared_task\ndef add(x: int, y: int) -> int:\n    return x + y\n"
    )
    (tmp_path / "config.toml").write_text(f'[store]\nurl = "{database.url}"\n')
    printed = python(tmp_path, "import shop; print(shop.add.delay(1, 2).state)")
    assert printed == "PENDING\n"


def python(place: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, env=clean(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SCHEDD_")}


@pytest.mark.timeout(300)
def test_the_example_on_a_daemon(database: Database, tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert "sqlite:///shop.db" in text
    (tmp_path / EXAMPLE.name).write_text(
        text.replace("sqlite:///shop.db", database.url).replace("setup =", f"{APART}setup =")
    )
    (tmp_path / "config.toml").write_text(
        f'[store]\nurl = "{database.url}"\n[tasks]\nmodules = ["celery_shop"]\npath = ["."]\n'
    )
    daemon_of = shutil.which("schedd", path=str(Path(sys.executable).parent))
    assert daemon_of is not None
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([daemon_of], cwd=tmp_path, env=clean(), stderr=log) as daemon,
    ):
        try:
            printed = python(
                tmp_path,
                "from celery_shop import *\n"
                "order = chord(price.s(i) for i in ('tea', 'bread'))(total.s(discount=1))\n"
                "print(order.get(timeout=100), (price.s('a') | receipt.s('EUR')).delay().get(timeout=100))\n"
                "retries, inner = apart.delay('cheese').get(timeout=100)\n"
                "print(retries, app.AsyncResult(inner).get(timeout=100))\n"
                "print([(one.name, one.kind) for one in app.scheduler.schedules.list()])\n",
            )
        finally:
            daemon.terminate()
    assert daemon.returncode == 0, (tmp_path / "log").read_text()
    assert printed == "7 1 EUR\n0 6\n[('nightly', 'celery_shop.price')]\n"
