"""The demo as a user runs it: a real schedd, really killed, and what the last table says of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
DEMO = [sys.executable, str(ROOT / "examples" / "demo" / "run.py")]
PATIENCE = 110


class Demo:
    """One run of the demo, in a process group and a temporary directory of its own."""

    def __init__(self, place: Path, *arguments: str, **environ: str) -> None:
        self.place = place
        ours = {name: value for name, value in os.environ.items() if name != "DEMO_KEEP"}
        self.process = subprocess.Popen(
            [*DEMO, *arguments],
            cwd=place,
            env={**ours, "TMPDIR": str(place), "DEMO_MEGAPIXELS": "0.5", **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout

    def until(self, pattern: str) -> re.Match[str]:
        """The next line that matches."""
        for line in self.output:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line matched {pattern!r}")

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "d"  # short: the path of a socket lies in it
    made.mkdir()
    return made


@pytest.fixture
def demos(place: Path) -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        demo.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.faults
def test_the_demo_loses_nothing_and_does_nothing_twice(place: Path, demos: list[Demo]) -> None:
    demo = Demo(place)
    demos.append(demo)
    text, _ = demo.process.communicate(timeout=PATIENCE)
    assert demo.process.returncode == 0, text

    killed = re.search(r"^kill -9 (\d+): interrupted (\d+ .+);$", text, re.MULTILINE)
    assert killed is not None, text
    interrupted = [int(one.split()[0]) for one in killed[2].split(", ") if one[0].isdigit()]
    pending = re.search(r"^(\d+) more were pending", text, re.MULTILINE)
    assert interrupted
    assert pending is not None
    assert int(pending[1]) > 0
    print(f"{len(interrupted)} tasks were re-run: {killed[2]}")

    table = text[text.index("\ntask  ") :].split("\n\n")[0].strip().splitlines()
    head = table[0]
    columns = [head.index(name) for name in ("state", "attempts", "how they ended", "successes")]
    rows = {}
    for line in table[1:]:
        cells = [line[a:b].strip() for a, b in zip([0, *columns], [*columns, None], strict=True)]
        rows[int(cells[0].split()[0])] = cells
    assert len(rows) >= 12  # eleven tasks, and the runs of the schedule
    for number, (name, state, attempts, history, successes) in rows.items():
        ends = history.split(", ")
        assert int(attempts) == len(ends), name
        expected = "dead" if "fails for good" in name else "success"
        assert state == expected, name
        assert int(successes) == ends.count("succeeded") == (1 if expected == "success" else 0), name
        assert (number in interrupted) == ("lost" in ends), name
    [flaky] = [cells for cells in rows.values() if cells[0].endswith("flaky")]
    assert [end for end in flaky[3].split(", ") if end != "lost"][-1] == "succeeded"
    assert int(flaky[2]) >= 3

    promises = re.findall(r"^(ok|FAILED)    (.+)$", text, re.MULTILINE)
    assert len(promises) == 8
    assert all(verdict == "ok" for verdict, _ in promises), promises
    assert "$ schedctl status\nSTATE" in text
    assert "$ schedctl show" in text
    assert "manifest.json" in text  # the command's output, in the log of its task
    assert "\x1b" not in text
    assert list(place.iterdir()) == []


def test_ctrl_c_leaves_nothing_behind_but_the_photo(place: Path, demos: list[Demo]) -> None:
    Image.linear_gradient("L").resize((800, 600)).save(place / "mine.png")
    before = (place / "mine.png").read_bytes()
    demo = Demo(place, "PHOTO=mine.png")
    demos.append(demo)
    daemon = int(demo.until(r"^Started schedd, process (\d+)")[1])
    demo.until(r" s +\d+ archive, slowly: running")
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does: to everybody
    text, _ = demo.process.communicate(timeout=PATIENCE)
    assert demo.process.returncode == 130, text
    assert "Traceback" not in text
    assert gone(daemon)
    assert [entry.name for entry in place.iterdir()] == ["mine.png"]
    assert (place / "mine.png").read_bytes() == before


@pytest.mark.parametrize("argument", ["PHOTO=text.jpg", "--frob"])
def test_a_photo_that_cannot_be_used_is_reported_in_one_line(place: Path, demos: list[Demo], argument: str) -> None:
    (place / "text.jpg").write_text("no picture")
    demo = Demo(place, argument)
    demos.append(demo)
    text, _ = demo.process.communicate(timeout=PATIENCE)
    assert demo.process.returncode == 2
    assert len(text.splitlines()) == 1, text
    assert [entry.name for entry in place.iterdir()] == ["text.jpg"]
