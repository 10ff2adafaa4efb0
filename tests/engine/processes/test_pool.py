"""The pool of child processes told step by step, without any process: whatever ends, no attempt is lost or blamed."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import selectors
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.runtime import CpuFuture
from scheduler.engine.child.protocol import FrameDecoder, frame
from scheduler.engine.execution.run import execute
from scheduler.engine.options import ProcessOptions
from scheduler.engine.processes import children as children
from scheduler.engine.processes import timeouts as patience
from scheduler.engine.processes.child_handle import CHUNK_BYTES, ChildHandle, ChildJob
from scheduler.engine.processes.host import ChildHost
from scheduler.engine.processes.orders import CancelOrder, SubmitOrder
from scheduler.engine.processes.pool import ProcessPool, ProcessSlots
from scheduler.errors import ProcessDied
from scheduler.model.capacity import PROCESS
from scheduler.ports import spawn_thread
from scheduler.testing import engine_of
from support.bench import Bench, notify_and_step
from support.databases import one_database

pytestmark = one_database

MEDIUM = 1


class Pool:
    """``pool``: one whose thread is this one; ``child``: set up as ready; ``reported``: (task id, how it ended)."""

    def __init__(self, bench: Bench, options: ProcessOptions) -> None:
        notify_and_step(bench.jobs)
        self.bench = bench
        self.engine_state = engine_of(bench.jobs).engine_state
        self.reported: list[tuple[int, str]] = []
        self.means: dict[str, float] = {}
        self.options = options
        self.pool = self.made()
        self.slots = ProcessSlots(self.pool, MEDIUM, options.children)
        self.wakeup = os.eventfd(0, os.EFD_CLOEXEC)
        self.pool.children.groups = None
        self.pool.children.open(self.wakeup)
        self.child = ChildHandle(1, None)
        self.child.ready = True
        self.pool.children.children[1] = self.child
        self.pool.children.listen_to(self.child)

    def made(self) -> ProcessPool:
        host = ChildHost(self.engine_state, self.options, spawn_thread)
        host.report, host.means = self._report, self.means  # type: ignore[method-assign]
        return ProcessPool(host)

    def obey(self) -> None:
        """Do what was posted to the pool."""
        for order in self.pool.orders.take():
            self.pool._obey(order)

    def hear(self, messages: int = 4) -> None:
        """Handle the messages that the child has sent."""
        self.pool.monitor.handle_all(self.child, self.child.received(messages))

    def hear_fork_server(self) -> None:
        for event in self.pool.children.read_fork_server():
            self.pool.monitor.handle(event)

    def _report(self, attempt: Attempt, outcome: Any) -> None:
        self.reported.append((attempt.claimed.id, outcome.end.value))

    def claim(self, *names: str) -> list[Attempt]:
        ids = [self.bench.step(name).schedule() for name in names]
        notify_and_step(self.bench.jobs)
        held = {key[0]: attempt for key, attempt in self.engine_state.held.items()}
        for slots in engine_of(self.bench.jobs).inline_slots():
            slots.waiting.clear()
        for attempt in held.values():
            attempt.slot_key = (MEDIUM, PROCESS)
        return [held[i] for i in ids]

    def give(self, *attempts: Attempt) -> list[int]:
        """Hand them to the child, which takes them. Returns the jobs' numbers."""
        self.slots.waiting.extend(attempts)
        for attempt in attempts:
            self.means[attempt.kind.name] = 0.0001  # so that several go to one child
            attempt.slot = self.slots
            assert self.pool.queue.give(self.child)
            self.child.peer.recv(CHUNK_BYTES)
        return list(self.child.jobs)

    def says(self, *message: Any) -> None:
        self.child._talk_peer.send(frame(*message))

    def sent_to_child(self) -> list[Any]:
        """The last message to the child."""
        return FrameDecoder().feed(self.child._talk_peer.recv(CHUNK_BYTES))[-1]


@pytest.fixture
def made(bench: Bench, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """With one child at most, or as the test has it (indirectly)."""
    made = Pool(bench, getattr(request, "param", ProcessOptions(children=1)))
    yield made
    made.child.close_fds()
    os.close(made.wakeup)


@pytest.mark.case(7, 60)
def test_only_what_had_begun_dies_with_its_process(made: Pool) -> None:
    """What the process had taken and not begun goes back to its slots, in order."""
    first, second, third = made.claim("first", "second", "third")
    one, *_ = made.give(first, second, third)
    made.says("start", one, made.engine_state.now())
    made.pool.monitor.on_exit(made.child, -11)
    assert made.reported == [(first.claimed.id, "dead")]
    assert list(made.slots.waiting) == [second, third]
    assert not made.pool.queue._given
    made.pool.children.close()


@pytest.mark.case(7)
@pytest.mark.parametrize("made", [ProcessOptions(children=1, recycle_tasks=1)], indirect=True)
def test_a_child_that_is_to_be_replaced_is_given_the_time_for_what_it_has_begun(made: Pool) -> None:
    attempts = made.claim("first", "second")
    first, second = made.give(*attempts)
    outcomes = [list(execute(attempt, made.engine_state)) for attempt in attempts]
    made.says("start", first, made.engine_state.now())
    made.says("done", first, None, outcomes[0])
    made.says("start", second, made.engine_state.now())
    made.hear()
    assert made.child.ending
    assert made.child.kill_at is None, "the grace period is for a child that was asked to end"
    assert made.child.work.fileno() >= 0
    made.says("done", second, None, outcomes[1])
    made.hear()
    assert [end for _, end in made.reported] == ["succeeded"] * 2
    assert made.child.work.fileno() == -1
    made.pool.children.close()


@pytest.mark.case(60)
@pytest.mark.parametrize("made", [ProcessOptions(children=2)], indirect=True)
def test_children_that_there_are_work_on_while_no_more_can_be_started(
    made: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They were given nothing more, and it was told twenty times a second."""

    def refuse() -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(children, "ForkServerClient", refuse)
    first, second, third = made.claim("first", "second", "third")
    made.slots.waiting.extend([first, second, third])
    for _ in range(3):
        made.pool.queue.start_children()
        made.pool.queue.feed()
    assert [job.attempt for job in made.child.jobs.values()] == [first]
    assert len(caplog.records) == 1
    assert "Too many open files" in caplog.text
    assert (made.slots.size, made.pool.backing_off) == (1, False), "what there is no child for is not claimed"
    made.child.killed = True
    assert (made.slots.size, made.pool.backing_off) == (0, True)
    made.pool.children.again_at = 0.0
    assert (made.slots.size, made.pool.backing_off) == (2, False)
    made.pool.children.close()


@pytest.mark.case(7)
def test_one_that_has_begun_while_its_engine_stood_still_is_not_ended(made: Pool) -> None:
    first, second = made.claim("first", "second")
    one, _ = made.give(first, second)
    made.says("start", one, made.engine_state.now())
    made.child.idle_since -= patience.NOT_BEGUN_TIMEOUT_S + 1
    made.pool.timeouts.check()
    assert made.child.current is not None
    assert not made.child.killed
    made.pool.children.close()


@pytest.mark.case(8)
def test_what_has_ended_is_reported_at_a_hard_stop_though_its_processes_have_not(made: Pool) -> None:
    """Else it would be handed back, and done again."""
    (attempt,) = made.claim("task")
    (number,) = made.give(attempt)
    made.says("start", number, made.engine_state.now())
    outcome = execute(attempt, made.engine_state)
    made.says("done", number, "processes", list(outcome))
    made.hear()
    assert made.reported == []
    assert not made.pool.queue._given
    made.pool._end()
    assert made.reported == [(attempt.claimed.id, "succeeded")]


@pytest.mark.case(8)
def test_a_function_that_no_child_has_taken_ends_with_the_pool(made: Pool) -> None:
    """What waits for it would keep its thread for ever."""
    (attempt,) = made.claim("task")
    answers: list[CpuFuture[Any]] = []
    for _ in range(2):
        job = ChildJob(MEDIUM, ("cpu", "os:getpid", b""), attempt)
        job.future = CpuFuture()
        answers.append(job.future)
        made.pool.orders.post(SubmitOrder(job))
        if len(answers) == 1:
            made.obey()  # this one has been heard of, the other has not
    made.pool._end()
    for answer in answers:
        assert isinstance(answer.exception(0), ProcessDied)


def asked(made: Pool) -> ChildJob:
    """A job of a function whose caller waits for it."""
    (attempt,) = made.claim("task")
    job = ChildJob(MEDIUM, ("cpu", "os:getpid", b""), attempt)
    job.future = CpuFuture()
    made.pool.orders.post(SubmitOrder(job))
    made.obey()
    return job


@pytest.mark.case(17)
@pytest.mark.parametrize("where", ["it waits", "it was given", "it was taken, and its process has died"])
def test_a_cancelled_function_does_not_begin(made: Pool, where: str) -> None:
    """The caller waits for its end, and gets an answer at once."""
    job = asked(made)
    assert job.future is not None
    if where != "it waits":
        assert made.pool.queue.give(made.child)
        if where != "it was given":
            made.child.peer.recv(CHUNK_BYTES)
    made.pool.orders.post(CancelOrder(job))
    made.obey()
    if where == "it was taken, and its process has died":
        assert not job.future.done()
        made.pool.monitor.on_exit(made.child, -9)
    assert isinstance(job.future.exception(0), ProcessDied)
    assert made.pool.queue.next(None) is None
    made.pool.children.close()


@pytest.mark.case(17)
@pytest.mark.parametrize("how", ["it says so", "its process dies", "the pool is closed"])
def test_a_cancelled_function_has_ended_when_its_caller_gets_the_answer(made: Pool, how: str) -> None:
    job = asked(made)
    assert job.future is not None
    assert made.pool.queue.give(made.child)
    made.child.peer.recv(CHUNK_BYTES)
    made.says("start", job.number, 0)
    made.hear()
    made.pool.orders.post(CancelOrder(job))
    made.obey()
    assert made.child.kill_at is not None
    if how == "it says so":
        made.says("computed", job.number, "stopped", True, pickle.dumps(7))
        made.hear()
    assert not job.future.done(), "what it has started may be there still"
    if how == "the pool is closed":
        made.pool._end()
    else:
        made.pool.monitor.on_exit(made.child, -9)
        made.pool.children.close()
    assert job.future.done()
    assert (job.future.exception() is None) is (how == "it says so")


@pytest.mark.case(17)
def test_a_function_for_which_no_thread_can_be_started_is_refused_and_forgotten(made: Pool) -> None:
    """It ran later, when another one had a thread, and beside the next attempt perhaps."""
    (attempt,) = made.claim("task")

    def refuse(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    made.pool.host.spawn = refuse  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="can't start new thread"):
        made.pool.submit_function(attempt, os.getpid, ())
    assert not made.pool.orders
    made.pool.children.close()


def test_a_function_that_comes_when_the_pool_has_just_been_closed_is_refused(made: Pool) -> None:
    (attempt,) = made.claim("task")
    made.pool.wake = made.pool.close  # type: ignore[method-assign]
    assert isinstance(made.pool.submit_function(attempt, os.getpid, ()).exception(0), ProcessDied)
    made.pool.children.close()


@pytest.mark.case(4)
@pytest.mark.parametrize("why", ["the lease has run out", "it was taken"])
def test_what_others_may_have_by_now_is_not_given_to_a_child(made: Pool, why: str) -> None:
    (attempt,) = made.claim("task")
    made.slots.waiting.append(attempt)
    if why == "it was taken":
        attempt.lost = True
    else:
        made.engine_state.lease_expires_at = made.engine_state.monotonic()
    assert not made.pool.queue.give(made.child)
    assert made.reported == [(attempt.claimed.id, "handed back")]
    assert not made.child.jobs
    made.pool.children.close()


@pytest.mark.case(4)
def test_what_was_killed_for_the_lease_had_run_out_uses_no_attempt(made: Pool) -> None:
    """Nor is it blamed; a child that was forked after that is blamed for what it does."""
    (attempt,) = made.claim("task")
    (number,) = made.give(attempt)
    made.says("start", number, made.engine_state.now())
    made.hear()
    children, later = made.pool.children, ChildHandle(2, None)
    children.children[2] = later
    events = [("started", 1, 4711), ("lapsed",), ("started", 2, 4712), ("ended", 4711, -9)]
    children.fork_server = SimpleNamespace(events=lambda: events)  # type: ignore[assignment]
    made.hear_fork_server()
    assert made.reported == [(attempt.claimed.id, "handed back")]
    assert not later.lease_expired
    later.close_fds()
    later.close()
    children.close()


class ForkServer:
    """The handle of one that never answers. ``received``: the calls that it got."""

    pid = 4711
    reply_expected = reply_seen = False

    def __init__(self) -> None:
        self.received: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.received.append(name)


@pytest.fixture
def clock(made: Pool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The monotonic clock that the pool loses patience by; ``clock.pass_(seconds)``, with a look every second."""
    clock = SimpleNamespace(now=time.monotonic())
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def pass_(seconds: int) -> None:
        for _ in range(seconds):
            clock.now += 1
            made.pool.timeouts.check()

    clock.pass_ = pass_
    made.child.idle_since = clock.now + 3600  # it has its time
    made.pool.timeouts.check()
    return clock


def test_a_fork_server_that_does_not_answer_is_logged_and_ended(
    made: Pool, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What waited for a child waited for ever, and what was to be killed was not."""
    children, server = made.pool.children, ForkServer()
    children.fork_server = server  # type: ignore[assignment]
    made.child.pid, made.child.killed = 4712, True
    clock.pass_(9)
    assert (server.received, made.pool.backing_off) == (["ping"], False)
    clock.pass_(1)
    assert (server.received, made.pool.backing_off) == (["ping", "resume"], True)
    (record,) = caplog.records
    assert "the process that forks child processes, 4711, has not answered for 10 s" in record.message
    clock.pass_(49)
    assert server.received == ["ping", "resume"]
    clock.pass_(1)
    assert server.received == ["ping", "resume", "kill_server"]
    assert len(caplog.records) == 1
    children.fork_server = None
    children.close()


@pytest.mark.parametrize("why", ["it says something", "this process stood still", "there is nothing to say"])
def test_a_fork_server_is_given_the_time_it_needs(made: Pool, clock: Any, why: str) -> None:
    children, server = made.pool.children, ForkServer()
    children.fork_server = server  # type: ignore[assignment]
    made.child.pid, made.child.killed = 4712, True
    clock.pass_(5)
    if why == "it says something":
        server.reply_seen = True  # such as that it is there; the child cannot be killed, so it is asked again
        clock.pass_(1)
    elif why == "this process stood still":
        clock.now += 600
        made.pool.timeouts.check()
    else:
        made.child.killed = False
        clock.pass_(60)
    clock.pass_(3)
    assert server.received == (["ping", "ping"] if why == "it says something" else ["ping"])
    assert not made.pool.backing_off


def test_a_fork_server_that_answers_late_is_used_again(made: Pool, clock: Any) -> None:
    children, server = made.pool.children, ForkServer()
    children.fork_server = server  # type: ignore[assignment]
    made.child.pid, made.child.killed = 4712, True
    clock.pass_(10)
    assert made.pool.backing_off
    server.reply_seen = True
    clock.pass_(1)
    assert not made.pool.backing_off
    children.fork_server = None
    children.close()


def test_a_child_that_was_to_be_killed_before_it_had_a_number_is(made: Pool) -> None:
    """The fork server tells of it later. What has it killed may be a handler that has to end."""
    killed: list[int] = []
    children = made.pool.children
    children.kill(made.child)
    children.fork_server = SimpleNamespace(kill=killed.append, events=lambda: [("started", 1, 4711)])  # type: ignore[assignment]
    made.hear_fork_server()
    assert killed == [4711]
    children.close()


@pytest.mark.case(63)
def test_a_question_is_answered_though_no_thread_can_be_started_for_it(made: Pool) -> None:
    """Or the handler would wait for ever, and so would all that ask later."""
    (attempt,) = made.claim("task")
    (number,) = made.give(attempt)
    host, asks = made.pool.host, ("load", ["failures", {}])
    spawn = host.spawn

    def refuse(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    host.spawn = refuse  # type: ignore[assignment]
    made.says("ask", number, 1, *asks)
    made.hear()
    made.obey()
    what, asked, fine, failure = made.sent_to_child()
    assert (what, asked, fine, failure["args"]) == ("answer", 1, False, ["can't start new thread"])

    host.spawn = spawn
    posted = threading.Event()
    post = host.orders.post
    host.orders.post = lambda order: (post(order), posted.set())  # type: ignore[assignment, method-assign, func-returns-value]
    made.says("ask", number, 2, *asks)
    made.hear()
    assert posted.wait(10)
    made.obey()
    assert made.sent_to_child() == ["answer", 2, True, []]
    host.close()
    made.pool.children.close()


def test_nothing_stays_open_of_a_pool_that_was_closed(made: Pool) -> None:
    """One descriptor of each engine that had used child processes did."""
    pool = made.made()
    pool.wake()
    wakeup = f"/proc/self/fd/{pool.orders.wakeup}"
    pool.close()
    assert os.readlink(wakeup) == "anon_inode:[eventfd]", "who wakes it late does no harm"
    del pool
    gc.collect()
    assert not os.path.lexists(wakeup) or "eventfd" not in os.readlink(wakeup)
    made.pool.children.close()


def test_one_that_is_buried_is_not_listened_to_in_the_same_round(made: Pool) -> None:
    """After a standstill the fork server tells that it has ended, and its sockets tell it, too, at the same time."""
    pool = made.pool
    pool.children.fork_server = SimpleNamespace(events=lambda: [("started", 1, 4711), ("ended", 4711, -9)])  # type: ignore[assignment]
    pool.children.selector.modify(made.wakeup, selectors.EVENT_READ, children.FORK_SERVER)
    os.eventfd_write(made.wakeup, 1)
    made.child._talk_peer.close()
    for event in pool.children.wait(1.0):
        pool.monitor.handle(event)
    assert not pool.children.children
    assert made.child.talk.fileno() == -1
    pool.children.close()


def raise_exit() -> None:
    raise SystemExit("on the way in")


class ExitsWhenLoaded:
    def __reduce__(self) -> Any:
        return (raise_exit, ())


@pytest.mark.case(76)
@pytest.mark.parametrize("value", [b"no pickle", pickle.dumps("no error"), pickle.dumps(ExitsWhenLoaded())])
def test_a_function_whose_process_tells_nonsense_has_failed(made: Pool, value: bytes) -> None:
    (attempt,) = made.claim("first")
    job = ChildJob(MEDIUM, (), attempt)
    job.number = 1
    job.future, job.started = CpuFuture(), True
    made.child.jobs[1] = job
    made.says("computed", 1, None, False, value)
    made.hear()
    assert job.future.exception(0) is not None
    assert not made.child.talk_over
    made.pool.children.close()


def test_one_attempt_of_which_nothing_can_be_said_keeps_no_other_from_its_child(
    made: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its type is gone, or it does not go into a message: it ends by that."""
    nameless, odd, fine = made.claim("nameless", "odd", "fine")
    nameless.kind = copy.copy(nameless.kind)
    nameless.kind.__dict__.pop("reference", None)
    nameless.kind.source = lambda: None  # type: ignore[assignment]
    odd.claimed = odd.claimed._replace(payload=object())  # type: ignore[arg-type]
    made.slots.waiting.extend([nameless, odd, fine])
    made.pool.queue.feed()
    assert made.reported == [(nameless.claimed.id, "dead"), (odd.claimed.id, "dead")]
    assert [job.attempt for job in made.child.jobs.values()] == [fine]


def test_a_round_does_what_it_can_and_says_once_what_it_cannot(
    made: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ValueError("no")

    (attempt,) = made.claim("one")
    made.slots.waiting.append(attempt)
    made.pool.orders.open()
    pauses: list[float] = []
    ours, sleep = threading.get_ident(), time.sleep
    monkeypatch.setattr(time, "sleep", lambda s: pauses.append(s) if threading.get_ident() == ours else sleep(s))
    monkeypatch.setattr(made.pool.timeouts, "check", fails)
    for _ in range(20):
        made.pool.orders.wake()
        made.pool._round()
    assert [job.attempt for job in made.child.jobs.values()] == [attempt]
    assert [record.getMessage() for record in caplog.records] == ["looking after the child processes failed; going on"]
    assert pauses[0] < pauses[-1] == 1.0


def test_one_job_that_cannot_be_reported_keeps_no_other_from_it(made: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = made.claim("first", "second")
    for number in made.give(first, second):
        made.says("start", number, made.engine_state.now())
    died = made.pool.host.died

    def refuses_the_first(job: ChildJob, how: str) -> ChildJob | None:
        if job.attempt is first:
            raise ValueError("no")
        return died(job, how)

    monkeypatch.setattr(made.pool.host, "died", refuses_the_first)
    made.pool.monitor.on_exit(made.child, -11)
    assert made.reported == [(first.claimed.id, "dead"), (second.claimed.id, "dead")]
    made.pool.children.close()
