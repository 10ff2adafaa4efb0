"""The file that says which handlers have begun, and whether its worker's process is gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from scheduler.store.db import begun as module
from scheduler.store.db.begun import Begun, begun, is_gone

pytestmark = pytest.mark.case(74, pure=True)


def test_it_outlasts_its_process(tmp_path: Path) -> None:
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        made = Begun([tmp_path / "missing", tmp_path], "one")
        for task_id in range(1, 40_001):
            made.note(task_id, task_id + 1)
        os.write(tell, b".")
        signal.pause()
    os.read(ready, 1)
    os.close(ready)
    os.close(tell)
    path = str(tmp_path / "schedd-one.begun")
    assert not is_gone(path)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert is_gone(path)
    found = begun(path)
    assert {(40_000, 40_001), (30_000, 30_001)} <= found, "the latest of them"
    assert len(found) == 16384
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_it_goes_with_a_worker_that_ends_in_good_order(tmp_path: Path) -> None:
    made = Begun([tmp_path], "one")
    made.note(1, 1)
    assert begun(str(made.path)) == {(1, 1)}
    made.close()
    assert list(tmp_path.iterdir()) == []
    assert not is_gone(str(made.path)), "nothing is proved"
    assert begun(str(made.path)) == set()


def test_after_a_reboot_it_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Begun([tmp_path], "one")
    made.note(1, 1)
    monkeypatch.setattr(module, "_boot", lambda: b"another boot")
    assert begun(str(made.path)) == set()
    made.close()


def test_without_a_place_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        Begun([tmp_path / "missing"], "one")
