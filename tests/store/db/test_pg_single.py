"""Single statements on PostgreSQL that go by libpq itself, and the notifications that they carry."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.errors import StoreUnavailableError
from scheduler.ports import SystemClock
from scheduler.store.db import notifier as notifiers
from scheduler.store.db import pg_single
from scheduler.store.db.database import Database as Store
from scheduler.store.db.statements import Notice, run
from support.databases import Database

pytestmark = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
EVENT = "INSERT INTO schedd_events (name, emitted_at) VALUES ($1, $2) RETURNING emitted_at"
HEARD = Notice("heard", "by whom")


@task
def work(ctx: Context, text: str = "") -> None: ...


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    made = Store(database.url, SystemClock())
    yield made
    made.dispose()


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(work)
    yield made
    made.close()


@pytest.fixture
def other(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """Another session."""
    with psycopg.connect(database.url.replace("postgresql+psycopg:", "postgresql:"), autocommit=True) as made:
        yield made


def emit(store: Store, name: str, notice: Notice | None = None, at: int = 1) -> int | None:
    return store.insert_on_server(lambda: (EVENT, [name, at]), notice)


def names(other: psycopg.Connection[Any]) -> list[str]:
    return [name for (name,) in other.execute("SELECT name FROM schedd_events ORDER BY emitted_at, name")]


def kept(store: Store) -> list[Any]:
    assert store._singles is not None
    return [raw for _, raw, _ in store._singles._kept]


def heard(other: psycopg.Connection[Any], least: int = 1) -> list[str]:
    """So many notifications, however long they take, and what has come with them."""
    expected = other.notifies(timeout=60, stop_after=least)
    return [found.payload for each in (expected, other.notifies(timeout=0)) for found in each]


@pytest.mark.parametrize("libpq", ["has pipelines", "has none"])
@pytest.mark.parametrize("most", [100, 0])
def test_rows_are_inserted_and_notified(
    store: Store, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, libpq: str, most: int
) -> None:
    monkeypatch.setattr(pg_single, "_MOST", most)  # statements that stay prepared
    monkeypatch.setattr(pg_single.capabilities, "has_pipeline", lambda: libpq == "has pipelines")
    other.execute("LISTEN heard")
    given = ["plain", "žluťoučký 🐎", 'with "quotes" and \\', "", "plain, too"]
    made = [emit(store, name, HEARD if i % 2 else None, i) for i, name in enumerate(given)]
    assert made == [0, 1, 2, 3, 4]
    assert heard(other, 2) == ["by whom", "by whom"]  # first: psycopg 3.2 drops what comes with another answer
    assert names(other) == given
    (raw,) = kept(store)
    with store.alone() as connection:  # the answers that nobody has read are no answers to this
        assert connection.connection.dbapi_connection is raw
        assert run(connection, "SELECT 1", {}) == [(1,)]
    assert emit(store, "again", HEARD, 2**62) == 2**62
    assert kept(store) == [raw]


@pytest.mark.parametrize("libpq", ["has pipelines", "has none"])
def test_notifications_wait_for_no_answer_and_keep_their_order(
    store: Store, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, libpq: str
) -> None:
    monkeypatch.setattr(pg_single.capabilities, "has_pipeline", lambda: libpq == "has pipelines")
    other.execute("LISTEN heard")
    store.open()
    for n in range(3):
        store.notify(Notice("heard", str(n)))
    emit(store, "a", Notice("heard", "3"))
    store.notify(Notice("heard", "4"))
    assert heard(other, 5) == ["0", "1", "2", "3", "4"]
    (raw,) = kept(store)
    with store.alone() as connection:
        assert connection.connection.dbapi_connection is raw
        assert run(connection, "SELECT 1", {}) == [(1,)]
    assert names(other) == ["a"]


def test_a_notification_does_not_wait_while_the_server_holds_it_up(
    store: Store, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = "SELECT pg_advisory_xact_lock(1), pg_notify($1, $2)"
    monkeypatch.setattr(pg_single, "NOTIFY", held)
    other.execute("LISTEN heard")
    store.open()
    with other.transaction():
        other.execute("SELECT pg_advisory_xact_lock(1)")
        store.notify(HEARD)  # returns all the same
        assert not [*other.notifies(timeout=0.3)]
    assert heard(other) == ["by whom"]


def test_a_notification_on_a_lost_connection_fails_and_the_next_one_has_another(
    store: Store, other: psycopg.Connection[Any]
) -> None:
    other.execute("LISTEN heard")
    store.notify(HEARD)
    (raw,) = kept(store)
    assert heard(other) == ["by whom"]
    other.execute("SELECT pg_terminate_backend(%s, 10000)", [raw.info.backend_pid])
    with pytest.raises(StoreUnavailableError):
        store.notify(HEARD)
    assert raw.closed
    store.notify(HEARD)
    assert heard(other) == ["by whom"]


def test_a_statement_that_inserts_nothing_returns_none(store: Store) -> None:
    nothing = (
        "INSERT INTO schedd_events (name, emitted_at) SELECT CAST($1 AS text), $2 WHERE false RETURNING emitted_at"
    )
    assert store.insert_on_server(lambda: (nothing, ["a", 1])) is None
    assert emit(store, "b") == 1


def test_an_error_is_explained_and_its_connection_is_closed(store: Store, other: psycopg.Connection[Any]) -> None:
    emit(store, "a")
    (raw,) = kept(store)
    with pytest.raises(StoreUnavailableError, match="not migrated"):
        store.insert_on_server(lambda: ("INSERT INTO nowhere VALUES ($1) RETURNING id", [1]), HEARD)
    assert not kept(store)
    assert raw.closed
    with pytest.raises(sa.exc.DataError, match="0x00"):
        emit(store, "cut\0short")
    emit(store, "b")
    assert names(other) == ["a", "b"]


def test_a_notification_that_fails_is_lost_and_the_row_is_not(store: Store, other: psycopg.Connection[Any]) -> None:
    other.execute("LISTEN heard")
    emit(store, "a", Notice("heard", "x" * 9000))
    (raw,) = kept(store)
    emit(store, "b", HEARD)
    assert kept(store) == [raw]
    assert heard(other) == ["by whom"]
    assert names(other) == ["a", "b"]


def test_one_with_unread_answers_comes_back_to_the_pool_as_it_was(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit(store, "a")
    (raw,) = kept(store)
    monkeypatch.setattr(store._singles, "_has_room", lambda: False)
    emit(store, "b", HEARD)
    assert not kept(store)
    with store.write() as tx:
        assert tx.connection.connection.dbapi_connection is raw
        assert not raw.autocommit
        assert tx.run("SELECT count(*) FROM schedd_events").scalar_one() == 2


def test_what_the_server_said_last_is_raised(store: Store, other: psycopg.Connection[Any]) -> None:
    emit(store, "a", HEARD)
    (raw,) = kept(store)
    other.execute("SELECT pg_terminate_backend(%s, 10000)", [raw.info.backend_pid])
    with pytest.raises(StoreUnavailableError, match=r"terminating connection"):
        emit(store, "b")
    assert emit(store, "c") is not None
    assert names(other) == ["a", "c"]


def test_what_the_server_said_last_is_raised_of_an_unread_notification_too(
    store: Store, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pg_single, "NOTIFY", "SELECT pg_sleep(60), $1::text, $2::text")
    emit(store, "a", HEARD)
    (raw,) = kept(store)
    other.execute("SELECT pg_terminate_backend(%s, 10000)", [raw.info.backend_pid])
    with pytest.raises(StoreUnavailableError, match=r"terminating connection"):
        emit(store, "b")
    assert names(other) == ["a"]


def test_an_interrupted_caller_stores_nothing_later(jobs: Scheduler, other: psycopg.Connection[Any]) -> None:
    jobs.task(work).schedule()
    with other.transaction():
        other.execute("LOCK TABLE schedd_tasks IN EXCLUSIVE MODE")
        interrupt = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            jobs.task(work).schedule()
    jobs.task(work).schedule()
    assert len(jobs.list_tasks()) == 2


def test_a_thread_leaves_it_to_the_next_statement_to_tell_of_those_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own notification takes the interpreter from the callers, and a second connection."""
    monkeypatch.setattr(notifiers, "_DEBOUNCE", 1.0)
    sent: queue.Queue[float] = queue.Queue()
    monkeypatch.setattr(notifiers.PgNotifier, "_notify", lambda *_: sent.put(time.monotonic()))
    notifier = notifiers.PgNotifier(store)
    for _ in range(2):
        notifier._last -= 1.0  # so long ago
        carried = notifier.carried()
        assert carried is not None
        notifier.was_carried(carried)
        notifier.notify()
    told = notifier._last + notifier._apart
    assert sent.get(timeout=20) >= told + notifiers._LATE * 1.0
    notifier.close()
    assert sent.empty()


def test_a_carried_notification_tells_for_all_that_had_asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifiers, "_DEBOUNCE", 3600.0)
    sent: list[str] = []
    monkeypatch.setattr(notifiers.PgNotifier, "_notify", lambda self, *_: sent.append(self._own))
    notifier = notifiers.PgNotifier(store)
    first = notifier.carried()
    assert first is not None
    assert first.notice == (notifiers.CHANNEL, "")
    assert notifier.carried() is None, "too soon"
    notifier.was_carried(first)
    notifier.notify()  # too soon, too: a thread waits
    notifier._last = float("-inf")
    second = notifier.carried()
    assert second is not None
    notifier.notify()  # it may not be carried by what was sent before
    notifier.was_carried(second)
    assert (notifier._asked, notifier._told) == (2, 1)
    notifier._last = float("-inf")
    third = notifier.carried()
    assert third is not None
    notifier.was_carried(third)
    notifier.close()
    assert not sent, "nobody is left who has asked"
    assert notifier.carried() is None
