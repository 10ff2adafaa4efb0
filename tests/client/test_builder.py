"""What cannot work is refused when it is built, in one sentence that says what is wrong, and nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import (
    ConfigError,
    Context,
    CycleError,
    InvalidScheduleError,
    PayloadError,
    RetryPolicy,
    Scheduler,
    SchedulerError,
    Task,
    TaskId,
    UnknownDependencyError,
    UnregisteredKindError,
    Weekday,
    task,
)
from scheduler.testing import FakeClock
from support.fleet import Fleet, rows

EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))


class Mail(Task):
    to: str
    copies: int = 1

    def run(self, ctx: Context) -> None: ...


@task
def resize(ctx: Context, path: str, width: int = 800, *, sharp: bool = False) -> None: ...


class Never(Task):
    def run(self, ctx: Context) -> None: ...


class Other(Task, kind="elsewhere"):
    """Says that it is of another kind than its class."""

    def kind_of(self) -> str:
        return "nowhere"

    def run(self, ctx: Context) -> None: ...


@pytest.fixture
def jobs() -> Scheduler:
    """Does no I/O: the directory of its database does not exist."""
    made = Scheduler("sqlite:////nowhere/at/all/jobs.db", clock=FakeClock())
    made.register(Mail)
    made.register(resize)
    made.register(Other)
    return made


def refused(error: type[SchedulerError], says: str, build: Callable[[], Any]) -> None:
    with pytest.raises(error) as raised:
        build()
    assert type(raised.value) is error
    text = str(raised.value)
    assert says in text, text
    assert "\n" not in text
    assert len(text) < 400, text


PAYLOADS: list[tuple[str, Callable[[Scheduler], Any]]] = [
    ("payload of Mail does not fit: Expected `str`, got `int`", lambda j: j.task(Mail(5))),  # type: ignore[arg-type]
    ("payload of Mail does not fit: Expected `int`", lambda j: j.task(Mail("a", copies="2"))),  # type: ignore[arg-type]
    ("payload of Mail is not JSON", lambda j: j.task(Mail(object()))),  # type: ignore[arg-type]
    ("payload of Mail has a text with half a surrogate pair", lambda j: j.task(Mail("half \ud800 a pair"))),
    ("payload of resize does not fit: missing a required argument: 'path'", lambda j: j.task(resize).schedule()),  # type: ignore[call-arg]
    ("too many positional arguments", lambda j: j.task(resize, "a", 1, 2)),  # type: ignore[call-arg]
    ("unexpected keyword argument 'wide'", lambda j: j.task(resize, "a", wide=1)),  # type: ignore[call-arg]
    ("does not fit: Expected `int`", lambda j: j.task(resize, "a", width="wide")),  # type: ignore[arg-type]
    ("does not fit: Expected `bool`", lambda j: j.task(resize, "a", sharp=1)),  # type: ignore[arg-type]
    ("over the limit of 131072; store the data elsewhere", lambda j: j.task(Mail("x" * 131072))),
    ("over the limit of 131072", lambda j: j.task(Mail("é" * 70_000))),
    ("takes no further arguments", lambda j: j.task(Mail("a"), 1)),  # type: ignore[call-overload]
    ("pass an instance, Mail(…), not the class", lambda j: j.task(Mail)),  # type: ignore[call-overload]
    ("a kind by its name takes its payload", lambda j: j.task("Mail")),  # type: ignore[call-overload]
    ("takes a Task instance, a @task function or a kind's name", lambda j: j.task(lambda ctx: None)),  # type: ignore[call-overload]
]


@pytest.mark.parametrize(("says", "build"), PAYLOADS, ids=[says[:40] for says, _ in PAYLOADS])
def test_payloads_that_do_not_fit(jobs: Scheduler, says: str, build: Callable[[Scheduler], Any]) -> None:
    refused(PayloadError, says, lambda: build(jobs))


def test_unknown_kinds(jobs: Scheduler) -> None:
    refused(UnregisteredKindError, "Never is not registered with this scheduler", lambda: jobs.task(Never()))
    refused(UnregisteredKindError, "kind 'nowhere' is not registered here", lambda: jobs.task(Other()))

    @task
    def unseen(ctx: Context) -> None: ...

    refused(UnregisteredKindError, "call register(unseen) first", lambda: jobs.task(unseen))
    with jobs.batch() as batch:
        refused(UnregisteredKindError, "Never is not registered", lambda: batch.task(Never()))


NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001
BUILDER: list[tuple[type[SchedulerError], str, Callable[[Any], Any]]] = [
    (InvalidScheduleError, "at 2026-01-01T00:00:00 has no time zone", lambda b: b.at(NAIVE)),
    (InvalidScheduleError, "at must be an aware datetime, not 'tomorrow'", lambda b: b.at("tomorrow")),
    (InvalidScheduleError, "at must be an aware datetime", lambda b: b.at(1767225600)),
    (ConfigError, "after must be at least 0, not -1", lambda b: b.after(-1)),
    (InvalidScheduleError, "not within the years 1 to 9999 in UTC", lambda b: b.at(datetime.max.replace(tzinfo=WEST))),
    (InvalidScheduleError, "not within the years 1 to 9999 in UTC", lambda b: b.at(datetime.min.replace(tzinfo=EAST))),
    (ConfigError, "after must be seconds or a timedelta, not '5'; a text has units", lambda b: b.after("5")),
    (ConfigError, "after must be seconds or a timedelta, not nan", lambda b: b.after(float("nan"))),
    (ConfigError, "after must be seconds or a timedelta, not True", lambda b: b.after(True)),
    (ConfigError, "after is over a thousand years", lambda b: b.after(1e15)),
    (ConfigError, "timeout must be more than 0, not 0", lambda b: b.timeout(0)),
    (ConfigError, "timeout must be seconds or a timedelta", lambda b: b.timeout(None)),
    (ConfigError, "retention must be at least 0", lambda b: b.key("k", retention=timedelta(-1))),
    (PayloadError, "a key is a text of 1 to 255 characters, not ''", lambda b: b.key("")),
    (PayloadError, "a key is a text of 1 to 255 characters", lambda b: b.key("k" * 256)),
    (PayloadError, "a key is a text of 1 to 255 characters, not 5", lambda b: b.key(5)),
    (PayloadError, "a key", lambda b: b.key("a\x00b")),
    (PayloadError, "a key", lambda b: b.key("a\ud800")),
    (ConfigError, "conflict must be keep, replace or reject, not 'first'", lambda b: b.key("k", conflict="first")),
    (ConfigError, "priority must be high, medium or low, not 'urgent'", lambda b: b.priority("urgent")),
    (ConfigError, "priority must be high, medium or low, not 1", lambda b: b.priority(1)),
    (ConfigError, "queue '' is not a name", lambda b: b.queue("")),
    (ConfigError, "queue 'two words' is not a name", lambda b: b.queue("two words")),
    (ConfigError, "queue None is not a name", lambda b: b.queue(None)),
    (ConfigError, "is not a name", lambda b: b.queue("q" * 201)),
    (ConfigError, "with_retry takes a RetryPolicy, not 3", lambda b: b.with_retry(3)),
    (PayloadError, "headers", lambda b: b.headers({"a": object()})),
    (PayloadError, "headers", lambda b: b.headers("abc")),
    (PayloadError, "headers", lambda b: b.headers(5)),
    (PayloadError, "over the limit of 16384", lambda b: b.headers({"a": "x" * 20_000})),
    (PayloadError, "correlation is a text of 1 to 255 characters", lambda b: b.correlation("")),
    (PayloadError, "causation is a text of 1 to 255 characters", lambda b: b.causation(17)),
    (PayloadError, "subject is a text of 1 to 255 characters", lambda b: b.subject("s" * 256)),
    (PayloadError, "subject", lambda b: b.subject("a\x00")),
    (PayloadError, "payload_ref is a text of 1 to 2000 characters", lambda b: b.payload_ref(None)),
    (PayloadError, "sequence must be a 64-bit whole number", lambda b: b.sequence(2**63)),
    (PayloadError, "sequence must be a 64-bit whole number, not 1.5", lambda b: b.sequence(1.5)),
    (PayloadError, "sequence must be a 64-bit whole number, not True", lambda b: b.sequence(True)),
    (ConfigError, "max_duration must be more than 0", lambda b: b.max_duration(0)),
    (ConfigError, "max_delay must be seconds or a timedelta", lambda b: b.max_delay("5 z")),
    (ConfigError, "when must be success, failure or finished, not 'done'", lambda b: b.depend_on(1, when="done")),
    (ConfigError, "otherwise must be fail, skip, run or wait, not 'stop'", lambda b: b.depend_on(1, otherwise="stop")),
    (ConfigError, "depend_on takes task ids and builders, not 'a'", lambda b: b.depend_on(["a"])),
    (ConfigError, "depend_on takes task ids and builders, not 1.5", lambda b: b.depend_on([1.5])),
    (ConfigError, "depend_on takes task ids and builders, not True", lambda b: b.depend_on([True])),
    (ConfigError, "depend_on takes", lambda b: b.depend_on(None)),
    (ConfigError, "0 is not a task id", lambda b: b.depend_on(0)),
    (ConfigError, "is not a task id", lambda b: b.depend_on(2**63)),
    (
        ConfigError,
        "different conditions: when=success and failure",
        lambda b: b.depend_on(1).depend_on(1, when="failure"),
    ),
    (
        ConfigError,
        "different conditions: otherwise=fail and skip",
        lambda b: b.depend_on(1).depend_on([1], otherwise="skip"),
    ),
    (ConfigError, "builders of the same batch only", lambda b: b.depend_on(b)),
    (InvalidScheduleError, "cannot depend on tasks", lambda b: b.depend_on(1).every(60)),
    (InvalidScheduleError, "cannot depend on tasks", lambda b: b.every(60).depend_on(1)),
    (InvalidScheduleError, "has times of its own", lambda b: b.at(datetime(2030, 1, 1, tzinfo=UTC)).every(60)),
    (InvalidScheduleError, "has times of its own", lambda b: b.every(60).at(datetime(2030, 1, 1, tzinfo=UTC))),
    (InvalidScheduleError, "has times of its own", lambda b: b.after(5).daily_at(1, 0)),
    (InvalidScheduleError, "has times of its own", lambda b: b.daily_at(1, 0).after(5)),
    (InvalidScheduleError, "of the same name is updated", lambda b: b.key("k", conflict="reject").every(60)),
    (InvalidScheduleError, "of the same name is updated", lambda b: b.every(60).key("k", conflict="reject")),
    (InvalidScheduleError, "catchup: this needs a recurrence such as cron", lambda b: b.catchup("all").schedule()),
    (InvalidScheduleError, "overlap: this needs a recurrence such as cron", lambda b: b.overlap("skip").schedule()),
    (
        InvalidScheduleError,
        "run_on_startup: this needs a recurrence",
        lambda b: b.run_on_startup().schedule(),
    ),
    (ConfigError, "catchup must be one of skip, last, all, none, not 'some'", lambda b: b.catchup("some")),
    (ConfigError, "overlap must be one of allow, skip, not 'wait'", lambda b: b.overlap("wait")),
    (ConfigError, "connection= is for single tasks", lambda b: b.every(60).schedule(connection=object())),
    (InvalidScheduleError, "", lambda b: b.cron("* * * *")),
    (InvalidScheduleError, "", lambda b: b.cron("0 0 30 2 *")),
    (InvalidScheduleError, "", lambda b: b.cron(5)),
    (InvalidScheduleError, "Mars/Base", lambda b: b.cron("* * * * *", tz="Mars/Base")),
    (InvalidScheduleError, "", lambda b: b.daily_at(24, 0)),
    (InvalidScheduleError, "", lambda b: b.hourly_at(60)),
    (InvalidScheduleError, "", lambda b: b.weekly_on(9, 0, 0)),
    (InvalidScheduleError, "", lambda b: b.monthly_on(32, 0, 0)),
    (InvalidScheduleError, "", lambda b: b.every(0)),
    (InvalidScheduleError, "", lambda b: b.every("an hour")),
    (InvalidScheduleError, "", lambda b: b.every(60, mode="sometimes")),
]


@pytest.mark.parametrize(
    ("error", "says", "build"), BUILDER, ids=[f"{n}-{says[:30]}" for n, (_, says, _b) in enumerate(BUILDER)]
)
def test_what_a_builder_refuses(
    jobs: Scheduler, error: type[SchedulerError], says: str, build: Callable[[Any], Any]
) -> None:
    refused(error, says, lambda: build(jobs.task(Mail("a"))))


def test_what_a_builder_takes(jobs: Scheduler) -> None:
    """The edges of what is allowed, so that the refusals above are not too eager."""
    builder = jobs.task(Mail("x" * 131_000)).key("k" * 255, retention=0).after(0).after(timedelta(days=366_000))
    builder.at(datetime(9999, 12, 31, tzinfo=UTC)).timeout(timedelta(microseconds=1)).queue("q" * 200)
    builder.sequence(-(2**63)).sequence(2**63 - 1).headers({}).correlation("ä" * 255).payload_ref("s3://" + "x" * 1995)
    builder.depend_on([]).depend_on(2**63 - 1).depend_on(TaskId(1)).depend_on([1, 1]).priority("HIGH").priority("low")
    assert jobs.task(resize, "a", sharp=True).cron("*/5 * * * *", tz="Europe/Berlin").weekly_on(Weekday.SUNDAY, 0, 0)


def test_batches_refuse_what_they_cannot_store(jobs: Scheduler) -> None:
    one, two = jobs.batch(), jobs.batch()
    a = one.task(Mail("a"))
    refused(ConfigError, "builders of the same batch only", lambda: two.task(Mail("b")).depend_on([a]))
    refused(ConfigError, "builders of the same batch only", lambda: jobs.task(Mail("b")).depend_on(a))
    refused(ConfigError, "belongs to a batch, which stores it at its end", a.schedule)
    refused(InvalidScheduleError, "register a recurring schedule outside of it", lambda: one.task(Mail("c")).every(60))
    refused(ConfigError, "once its with block has ended", lambda: one.ids)
    refused(PayloadError, "correlation is a text", lambda: jobs.batch(correlation=""))
    refused(PayloadError, "takes no further arguments", lambda: one.task(Mail("d"), 2))  # type: ignore[call-overload]
    with jobs.batch() as empty:
        pass
    assert empty.ids == []  # stored nothing, needed no database
    refused(ConfigError, "stored already; open another one", lambda: empty.task(Mail("e")))


def test_a_batch_whose_block_raised_stores_nothing(fleet: Fleet) -> None:
    jobs = fleet.worker(Mail)
    with pytest.raises(KeyError), jobs.batch() as batch:
        raise KeyError(batch.task(Mail("a")))
    refused(ConfigError, "once its with block has ended", lambda: batch.ids)
    assert jobs.list_tasks() == []


def test_a_batch_is_stored_once(fleet: Fleet) -> None:
    jobs = fleet.worker(Mail)
    with jobs.batch() as batch:
        batch.task(Mail("a"))
    with pytest.raises(ConfigError, match="stored already"), batch:
        pass
    assert [record.id for record in jobs.list_tasks()] == batch.ids


def test_unknown_dependencies_are_named_and_store_nothing(fleet: Fleet) -> None:
    jobs = fleet.worker(Mail)
    known = jobs.task(Mail("known")).schedule()
    for unknown in (known + 1, 2**40, 2**63 - 1):
        refused(
            UnknownDependencyError,
            f"cannot depend on {unknown}: no such task",
            lambda: jobs.task(Mail("a")).depend_on([known, unknown]).schedule(),  # noqa: B023
        )
    batch = jobs.batch()
    batch.task(Mail("b"))
    batch.task(Mail("c")).depend_on([7001, known, 7002])
    with pytest.raises(UnknownDependencyError) as raised, batch:
        pass
    assert raised.value.parent_ids == (7001, 7002)
    assert [record.id for record in jobs.list_tasks()] == [known]
    assert rows(jobs, "SELECT * FROM schedd_edges") == []


def test_cycles_name_their_path_and_store_nothing(fleet: Fleet) -> None:
    jobs = fleet.worker(Mail)
    batch = jobs.batch()
    a, b, c, _ = (batch.task(Mail(x)) for x in "abcd")
    a.depend_on(c)
    b.depend_on(a)
    c.depend_on(b)
    with pytest.raises(CycleError) as raised, batch:
        pass
    path = list(raised.value.path)
    assert path[0] == path[-1]
    assert sorted(path[:-1]) == ["Mail#0", "Mail#1", "Mail#2"]
    assert str(raised.value) == "dependency cycle: " + " -> ".join(map(str, path))
    itself = jobs.batch()
    d = itself.task(Mail("d"))
    d.depend_on(d)
    with pytest.raises(CycleError) as raised, itself:
        pass
    assert raised.value.path == ("Mail#0", "Mail#0")
    assert jobs.list_tasks() == []


def test_connections_that_cannot_be_used(fleet: Fleet) -> None:
    jobs = fleet.worker(Mail)
    refused(
        ConfigError,
        "connection= takes a SQLAlchemy Connection or Session, or Django's connection, not str",
        lambda: jobs.task(Mail("a")).schedule(connection="sqlite://"),  # type: ignore[arg-type]
    )
    engine = sa.create_engine(fleet.database.url)
    with engine.connect() as connection:
        connection.rollback()
        task_id = jobs.task(Mail("a")).schedule(connection=connection)
        connection.rollback()
    engine.dispose()
    assert jobs.list_tasks() == []
    assert task_id.created


def test_before_schedule_may_refuse(fleet: Fleet) -> None:
    def never(builder: Any) -> None:
        raise PayloadError("not today")

    jobs = fleet.worker(Mail, before_schedule=never)
    refused(PayloadError, "not today", jobs.task(Mail("a")).schedule)
    refused(PayloadError, "not today", jobs.task(Mail("a")).every(60).schedule)
    assert jobs.list_tasks() == []
    assert jobs.schedules.list() == []


def test_texts_at_their_limits_are_stored_as_they_are(fleet: Fleet) -> None:
    jobs = fleet.worker(Mail)
    headers = {"nul": "\x00", "deep": [{"é": None}], "empty": ""}
    builder = jobs.task(Mail("nul \x00 and \u2028")).key("ä" * 255).subject("☃ ' \" \\ %s :name").headers(headers)
    task_id = (
        builder.correlation("c" * 255).sequence(-(2**63)).with_retry(RetryPolicy(max_attempts=2**31 - 1)).schedule()
    )
    stored = jobs.get_task(task_id)
    assert (stored.key, stored.subject, stored.headers) == ("ä" * 255, "☃ ' \" \\ %s :name", headers)
    assert (stored.sequence, stored.max_attempts, stored.correlation) == (-(2**63), 2**31 - 1, "c" * 255)
    assert jobs.list_tasks(subject="☃ ' \" \\ %s :name", key="ä" * 255) == [stored]


def test_each_wrong_condition_is_named_alone(jobs: Scheduler) -> None:
    with pytest.raises(ConfigError) as raised:
        jobs.task(resize, "x").depend_on(1, when="succeeded")
    assert str(raised.value) == "when must be success, failure or finished, not 'succeeded'"
    with pytest.raises(ConfigError) as raised:
        jobs.task(resize, "x").depend_on(1, otherwise="retry")
    assert str(raised.value) == "otherwise must be fail, skip, run or wait, not 'retry'"
