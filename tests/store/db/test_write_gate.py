"""SQLite's gate: who is next; and with the notifier, at the end of a program that has stopped nothing."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scheduler.store.db import notifier as notifiers
from scheduler.store.db import write_gate
from scheduler.store.db.notifier import SocketNotifier
from scheduler.store.db.write_gate import WriteGate
from scheduler.system import locks
from support.fleet import until

# What is registered first runs last, as does an engine's thread that the program has not stopped.
PROGRAM = """
import atexit, sys
from pathlib import Path

@atexit.register
def last():
    passage.__exit__(None, None, None)
    notifier.notify()
    with gate.hold(timeout=1.0):
        print("passed")

from scheduler.store.db.notifier import SocketNotifier
from scheduler.store.db.write_gate import WriteGate

gate, notifier = WriteGate(Path(sys.argv[1])), SocketNotifier(Path(sys.argv[1]))
passage = gate.hold()
passage.__enter__()
"""


def test_both_serve_until_the_very_end(tmp_path: Path) -> None:
    notified = threading.Event()
    notifier = SocketNotifier(tmp_path)
    notifier.listen("listener", notified.set)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("passed\n", "")
    assert notified.wait(10.0)
    notifier.close()


@pytest.mark.linux
def test_a_listener_that_comes_within_a_tick_of_the_file_system_is_notified(tmp_path: Path) -> None:
    """Before Linux 6.13 a directory's time goes by some milliseconds: two that came in the same ones look like one."""
    first, sender, second = (SocketNotifier(tmp_path) for _ in range(3))
    notified = threading.Event()
    first.listen("first", lambda: None)
    changed = time.time_ns() + 10**10  # the tick is not over
    os.utime(tmp_path, ns=(changed, changed))
    sender.notify()
    second.listen("second", notified.set)
    os.utime(tmp_path, ns=(changed, changed))
    sender.notify()
    assert notified.wait(10.0)
    os.utime(tmp_path, ns=(changed - 2 * 10**10,) * 2)
    sender.notify()
    assert sender._seen[0], "what has settled is not read again for each notification"
    for notifier in (first, sender, second):
        notifier.close()


@pytest.mark.parametrize(
    ("changed", "age", "settled"),
    [(1, 0.01, False), (1, 0.03, True), (0, 0.03, False), (0, 1.0, False), (0, 1.2, True)],
)
def test_when_a_tick_is_over(changed: int, age: float, settled: bool) -> None:
    """Of a time in whole seconds (``changed`` 0) it may be one of those."""
    since = 1_700_000_000 * 10**9 + changed
    assert notifiers._settled(since, since + round(age * 10**9)) is settled


@pytest.fixture(autouse=True)
def no_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn is queued up for."""
    monkeypatch.setattr(write_gate, "SLICE", 0.0)


@pytest.fixture
def two(tmp_path: Path) -> tuple[WriteGate, WriteGate]:
    """As two processes have them, both having passed once."""
    made = WriteGate(tmp_path), WriteGate(tmp_path)
    for gate in made:
        assert gate.enter()
        gate.leave()
    return made


def test_who_waits_comes_before_who_has_just_had_the_turn(two: tuple[WriteGate, WriteGate]) -> None:
    ours, theirs = two
    order: list[str] = []

    def wait() -> None:
        with theirs.hold():
            order.append("theirs")

    assert ours.enter()
    waiter = threading.Thread(target=wait)
    waiter.start()
    assert theirs._turn is not None
    until(theirs._turn._mutex.locked)  # by then it has what comes before it
    ours.leave()
    with ours.hold():
        order.append("ours")
    waiter.join(10)
    assert order == ["theirs", "ours"]


def test_a_writer_takes_a_free_turn_again_until_its_slice_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is not empty meanwhile; a turn without queueing up makes the slice no longer."""
    monkeypatch.setattr(write_gate, "SLICE", 60.0)
    gate = WriteGate(tmp_path)
    assert gate.enter()
    gate.leave()
    slice_end = gate._slice_end
    with open(tmp_path / "next") as waiter:
        fcntl.flock(waiter, fcntl.LOCK_EX)
        for _ in range(2):
            assert gate.enter(timeout=0.0)
            gate.leave()
        assert gate._slice_end == slice_end
        gate._slice_end = time.monotonic()
        assert not gate.enter(timeout=0.0)
    assert gate.enter(timeout=0.0)


@pytest.mark.parametrize("held", ["next", "turn"])
def test_a_writer_that_times_out_goes_on_without_the_gate_and_blocks_no_other(
    two: tuple[WriteGate, WriteGate], tmp_path: Path, held: str
) -> None:
    ours, theirs = two
    with open(tmp_path / held) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not ours.enter(timeout=0.01)
    for gate in two:
        assert gate.enter(timeout=0.0)
        gate.leave()
    with ours.hold():
        assert not theirs.enter(timeout=0.0)
    assert theirs.enter(timeout=0.0)


class Interrupting:
    """``fcntl``, but a Ctrl-C comes right after so many locks were had, or given back."""

    LOCK_EX, LOCK_NB, LOCK_UN = fcntl.LOCK_EX, fcntl.LOCK_NB, fcntl.LOCK_UN

    def __init__(self, how: int, after: int) -> None:
        self.how, self.left = how, after

    def flock(self, fd: int, how: int) -> None:
        fcntl.flock(fd, how)
        if how & self.how:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


@pytest.mark.posix
@pytest.mark.parametrize("first", [True, False], ids=["its first time", "later"])
@pytest.mark.parametrize(
    ("how", "after"), [(fcntl.LOCK_EX, 1), (fcntl.LOCK_EX, 2), (fcntl.LOCK_UN, 1), (fcntl.LOCK_UN, 2)]
)
def test_an_interrupted_writer_blocks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool, how: int, after: int
) -> None:
    ours, theirs = WriteGate(tmp_path), WriteGate(tmp_path)
    if not first:
        with ours.hold():
            pass
    with monkeypatch.context() as m:
        m.setattr(locks, "fcntl", Interrupting(how, after))
        with pytest.raises(KeyboardInterrupt), ours.hold():
            pass
    for gate in (theirs, ours):
        assert gate.enter(timeout=0.0)
        gate.leave()


def test_threads_of_one_process_pass_one_by_one(tmp_path: Path) -> None:
    gate = WriteGate(tmp_path)
    inside = most = passed = 0
    counting = threading.Lock()

    def pass_often() -> None:
        nonlocal inside, most, passed
        for _ in range(200):
            with gate.hold():
                with counting:
                    inside += 1
                    most = max(most, inside)
                    passed += 1
                with counting:
                    inside -= 1

    threads = [threading.Thread(target=pass_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, passed) == (1, 800)
