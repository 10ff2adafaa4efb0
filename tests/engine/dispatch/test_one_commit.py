"""A task's end and what follows from it are one commit: a crash in front of it leaves neither."""

from __future__ import annotations

import pytest

from scheduler.ports import FAILPOINTS
from support.bench import Bench, notify_and_step, run_claimed


class Crash(Exception):
    pass


@pytest.mark.case(6, 31)
def test_a_crash_before_the_commit_leaves_neither_the_end_nor_the_release(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = int(bench.step("parent").schedule())
    child = int(bench.step("child", parent).schedule())
    notify_and_step(bench.jobs)
    run_claimed(bench.jobs)

    def crash(name: str) -> None:
        if name == "before finish commit":
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(FAILPOINTS, "hit", crash)
        with pytest.raises(Crash):
            notify_and_step(bench.jobs)
    assert bench.states(parent, child) == ["claimed", "waiting"]
    assert bench.jobs.get_attempts(parent) == []
    assert bench.drain() == ["child"]
    assert bench.states(parent, child) == ["success", "success"]
