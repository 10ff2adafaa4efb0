"""The contracts. Each is one function, named by what it promises; where a flag says no, the refusal is the contract."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core import checks
from django.utils import timezone

from django_tasks_conformance import standard, tasks
from django_tasks_conformance.standard import base

Run = Callable[[], None]
READY, FAILED, SUCCESSFUL = (getattr(base.TaskResultStatus, name) for name in ("READY", "FAILED", "SUCCESSFUL"))


def fresh(task: Any, **changes: Any) -> Any:
    return dataclasses.replace(task, **changes)


# declaring


def test_01_flags_are_booleans(backend: Any) -> None:
    flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
    assert all(isinstance(getattr(backend, flag), bool) for flag in flags)


def test_02_a_function_without_a_place_is_refused(backend: Any) -> None:
    with pytest.raises(standard.InvalidTask):
        standard.task(lambda: None)

    def local() -> None: ...

    with pytest.raises(standard.InvalidTask):
        standard.task(local)


def test_03_takes_context_wants_a_first_argument_named_context(backend: Any) -> None:
    with pytest.raises(standard.InvalidTask):
        standard.task(takes_context=True)(tasks.without_context)


def test_04_priorities_beyond_100_and_fractions_are_refused(backend: Any) -> None:
    for priority in (101, -101, 1.5):
        with pytest.raises(standard.InvalidTask):
            tasks.echo.using(priority=priority)


def test_05_a_queue_that_is_not_listed_is_refused(backend: Any) -> None:
    if not backend.queues:
        pytest.skip("QUEUES is empty: every queue is allowed")
    with pytest.raises(standard.InvalidTask):
        tasks.echo.using(queue_name="no-such-queue")


def test_06_a_naive_run_after_is_refused(backend: Any) -> None:
    with pytest.raises(standard.InvalidTask):
        tasks.echo.using(run_after=datetime(2100, 1, 1))  # noqa: DTZ001


def test_07_using_makes_another_task(backend: Any) -> None:
    before = dataclasses.asdict(dataclasses.replace(tasks.echo))
    if backend.supports_priority:
        assert tasks.echo.using(priority=5).priority == 5
    else:
        with pytest.raises(standard.InvalidTask):
            tasks.echo.using(priority=5)
    assert dataclasses.asdict(tasks.echo) == before


def test_08_check_yields_messages_of_django(backend: Any) -> None:
    assert all(isinstance(message, checks.CheckMessage) for message in backend.check())


# enqueueing


def test_09_enqueue_returns_a_result_of_the_task(backend: Any, ran: Any) -> None:
    result = tasks.echo.enqueue(1, word="a")
    assert result.task == tasks.echo
    assert result.args == [1]
    assert result.kwargs == {"word": "a"}
    assert result.backend == "default"
    assert result.enqueued_at is not None
    assert result.status in base.TaskResultStatus


def test_10_ids_are_texts_of_64_characters_at_most_and_unique(backend: Any) -> None:
    ids = [tasks.echo.enqueue().id for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(isinstance(one, str) and 0 < len(one) <= 64 for one in ids)


def test_11_arguments_are_json_as_it_is_read_back(backend: Any, run: Run, result_of: Any) -> None:
    result = tasks.echo.enqueue((1, 2), deep={"a": (3,)})
    assert result.args == [[1, 2]]
    assert result.kwargs == {"deep": {"a": [3]}}
    run()
    assert result_of(result).return_value == [[[1, 2]], {"deep": {"a": [3]}}]


def test_12_arguments_that_are_no_json_are_refused(backend: Any) -> None:
    with pytest.raises(TypeError):
        tasks.echo.enqueue(object())


def test_13_a_list_that_changes_later_does_not_change_the_task(backend: Any, run: Run, result_of: Any) -> None:
    given = [1]
    result = tasks.echo.enqueue(given)
    given.append(2)
    run()
    assert result_of(result).args == [[1]]


def test_14_aenqueue_is_enqueue_awaited(backend: Any, run: Run, result_of: Any) -> None:
    result = asyncio.run(tasks.echo.aenqueue(7))
    run()
    assert result_of(result).return_value == [[7], {}]


def test_15_enqueue_validates_again(backend: Any) -> None:
    wrong = dataclasses.replace(tasks.echo)
    object.__setattr__(wrong, "priority", 101)
    with pytest.raises(standard.InvalidTask):
        wrong.enqueue()


# running


def test_16_a_success_has_its_value_its_times_and_its_worker(backend: Any, run: Run, result_of: Any) -> None:
    result = tasks.echo.enqueue(1)
    run()
    found = result_of(result)
    assert found.status == SUCCESSFUL
    assert found.is_finished
    assert found.return_value == [[1], {}]
    assert found.enqueued_at <= found.started_at <= found.last_attempted_at <= found.finished_at
    assert found.attempts == len(found.worker_ids) == 1
    assert found.errors == []


def test_17_a_failure_has_its_error_with_class_and_traceback(backend: Any, run: Run, result_of: Any) -> None:
    result = tasks.broken.enqueue("so it goes")
    run()
    found = result_of(result)
    assert found.status == FAILED
    assert found.is_finished
    assert found.errors[-1].exception_class is LookupError
    assert "so it goes" in found.errors[-1].traceback
    assert "in broken" in found.errors[-1].traceback
    with pytest.raises(ValueError, match=r"."):
        _ = found.return_value


def test_18_a_result_that_is_no_json_is_a_failure(backend: Any, run: Run, result_of: Any) -> None:
    result = tasks.unstorable.enqueue()
    run()
    assert result_of(result).status == FAILED


def test_19_the_context_knows_the_attempt_and_the_result(backend: Any, run: Run, result_of: Any) -> None:
    result = tasks.with_context.enqueue()
    run()
    assert result_of(result).return_value == [1, result.id, "RUNNING"]


def test_20_coroutine_functions_run_or_are_refused(backend: Any, run: Run, result_of: Any) -> None:
    if not backend.supports_async_task:
        with pytest.raises(standard.InvalidTask):
            tasks.async_task()
        return
    tasks.coroutine = tasks.async_task()  # where Django looks for the task
    result = tasks.coroutine.enqueue(1)
    run()
    assert result_of(result).return_value == 2


def test_21_run_after_is_waited_for_or_refused(backend: Any, run: Run, ran: Any) -> None:
    later = timezone.now() + timedelta(hours=1)
    if not backend.supports_defer:
        with pytest.raises(standard.InvalidTask):
            tasks.note.using(run_after=later)
        return
    tasks.note.using(run_after=later).enqueue("later")
    tasks.note.using(run_after=timezone.now() - timedelta(hours=1)).enqueue("past")
    run()
    assert ran() == ["past"]


def test_22_priorities_order_what_waits_or_are_refused(backend: Any, request: pytest.FixtureRequest) -> None:
    if not backend.supports_priority:
        with pytest.raises(standard.InvalidTask):
            tasks.note.using(priority=1)
        return
    run, ran = request.getfixturevalue("run"), request.getfixturevalue("ran")
    if request.config.getoption("--tasks-run") is None:
        pytest.skip("the backend runs each task at once")
    for priority in (0, 20, -20, 10, -10):
        tasks.note.using(priority=priority).enqueue(str(priority))
    run()
    assert ran() == ["20", "10", "0", "-10", "-20"]


def test_23_each_task_runs_once(backend: Any, run: Run, ran: Any) -> None:
    for number in range(10):
        tasks.note.enqueue(str(number))
    run()
    run()
    assert sorted(ran()) == sorted(map(str, range(10)))


# results


def test_24_get_result_finds_a_task_by_its_id_or_says_that_it_cannot(backend: Any) -> None:
    result = tasks.echo.enqueue(3)
    if not backend.supports_get_result:
        pytest.skip("supports_get_result is false")
    for found in (backend.get_result(result.id), tasks.echo.get_result(result.id)):
        assert (found.id, found.args, found.task.func) == (result.id, [3], tasks.echo.func)
    assert asyncio.run(tasks.echo.aget_result(result.id)).id == result.id


def test_25_an_unknown_id_is_an_error_of_its_own(backend: Any) -> None:
    if not backend.supports_get_result:
        pytest.skip("supports_get_result is false")
    for unknown in ("0" * 32, "123456789", "no such id"):
        with pytest.raises(standard.TaskResultDoesNotExist):
            backend.get_result(unknown)
        with pytest.raises(standard.TaskResultDoesNotExist):
            asyncio.run(backend.aget_result(unknown))


def test_26_another_tasks_id_is_a_mismatch(backend: Any) -> None:
    if not backend.supports_get_result:
        pytest.skip("supports_get_result is false")
    result = tasks.echo.enqueue()
    with pytest.raises(standard.TaskResultMismatch):
        tasks.other.get_result(result.id)


def test_27_a_result_is_refreshed_in_place(backend: Any, run: Run) -> None:
    if not backend.supports_get_result:
        pytest.skip("supports_get_result is false")
    result = tasks.echo.enqueue(5)
    run()
    result.refresh()
    assert result.return_value == [[5], {}]
    asyncio.run(result.arefresh())
    assert result.status == SUCCESSFUL


def test_28_a_result_keeps_the_tasks_priority_queue_and_time(backend: Any) -> None:
    if not (backend.supports_get_result and backend.supports_priority and backend.supports_defer):
        pytest.skip("one of supports_get_result, supports_priority, supports_defer is false")
    later = timezone.now() + timedelta(hours=1)
    result = tasks.echo.using(priority=17, run_after=later).enqueue()
    found = backend.get_result(result.id)
    assert (found.task.priority, found.task.run_after, found.status) == (17, later, READY)


def test_29_a_task_that_waits_has_no_value(backend: Any, request: pytest.FixtureRequest) -> None:
    if not backend.supports_defer:
        pytest.skip("supports_defer is false")
    result = tasks.echo.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
    assert (result.status, result.is_finished, result.started_at, result.finished_at) == (READY, False, None, None)
    with pytest.raises(ValueError, match=r"."):
        _ = result.return_value


# signals


@pytest.fixture
def heard() -> Any:
    found: list[tuple[str, str, str, Any]] = []

    def receiver(name: str) -> Any:
        def hear(sender: Any, task_result: Any, **_: Any) -> None:
            found.append((name, task_result.id, str(task_result.status), sender))

        return hear

    receivers = {name: receiver(name) for name in ("enqueued", "started", "finished")}
    for name, one in receivers.items():
        getattr(standard, f"task_{name}").connect(one)
    yield found
    for name, one in receivers.items():
        getattr(standard, f"task_{name}").disconnect(one)


def test_30_enqueueing_is_signalled_once(backend: Any, heard: Any) -> None:
    result = tasks.echo.enqueue()
    assert [one for name, one, *_ in heard if name == "enqueued"] == [result.id]


def test_31_start_and_end_are_signalled_with_their_status(backend: Any, run: Run, heard: Any) -> None:
    """Of a worker in this process; one elsewhere sends them there."""
    heard.clear()
    good, bad = tasks.echo.enqueue(), tasks.broken.enqueue("x")
    run()
    for result, end in ((good, "SUCCESSFUL"), (bad, "FAILED")):
        of_it = [(name, status) for name, one, status, _ in heard if one == result.id and name != "enqueued"]
        assert of_it == [("started", "RUNNING"), ("finished", end)]


def test_32_the_sender_of_a_signal_is_the_backends_class(backend: Any, run: Run, heard: Any) -> None:
    tasks.echo.enqueue()
    run()
    assert {sender for *_, sender in heard} == {type(backend)}


# transactions


def test_33_what_is_rolled_back_does_not_run(backend: Any, run: Run, ran: Any, request: pytest.FixtureRequest) -> None:
    """Not every backend promises this: one without a queue of its own in the database cannot."""
    from django.db import transaction

    if request.config.getoption("--tasks-run") is None:
        pytest.skip("the backend runs each task at once")
    try:
        with transaction.atomic():
            tasks.note.enqueue("rolled back")
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    with transaction.atomic():
        tasks.note.enqueue("committed")
    run()
    assert ran() == ["committed"]
