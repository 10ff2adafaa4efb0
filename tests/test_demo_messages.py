"""The demo of messages as a user runs it: a real schedd, really killed, and what arrived at the other ends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN = ROOT / "examples" / "orders" / "run.py"
PATIENCE = 110


@pytest.mark.faults
@pytest.mark.parametrize(
    "arguments",
    [pytest.param([], marks=pytest.mark.needs("miniflare"), id="worker"), pytest.param(["--pull"], id="pull")],
)
def test_each_order_has_its_effects_once_although_the_daemon_is_killed(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(RUN), *arguments],
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path,
    )  # fmt: skip
    text = done.stdout
    assert done.returncode == 0, text + done.stderr
    assert ("under miniflare" in text) == (arguments == []), "the fallback is said on the screen"
    killed = re.search(r"^kill -9 \d+: (\d+) of (\d+) orders had gone out", text, re.MULTILINE)
    assert killed is not None, text
    assert 0 < int(killed[1]) < int(killed[2])
    promises = re.findall(r"^(ok|FAILED)    (.+)$", text, re.MULTILINE)
    assert len(promises) == 5, "NATS is there for the tests"
    assert all(verdict == "ok" for verdict, _ in promises), promises


def test_a_wrong_argument_is_reported_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(RUN), "--frob"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "usage: python examples/orders/run.py [--pull]\n")
