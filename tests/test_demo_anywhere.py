"""The demo of worlds as a user runs it: what is killed in each, and that all print the same."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.fleet import until

ROOT = Path(__file__).parents[1]
RUN = ROOT / "examples" / "worlds" / "run.py"
PATIENCE = 310
WORLDS = ("sqlite", "fleet", "process", "dask", "slurm", "ray")
OUTPUT = """
apology    success    "search cancelled: no error recorded"
invoice    success    "invoice for 1278 g"
order-7    success    "charge order-7"
parcel-01  success    101
... 9 more lines
parcel-11  success    111
parcel-12  success    112
search     cancelled  null
1 charge, 12 labels

"""


LITTER = ("pymp-", "scratch-space", "dask-scratch-space")  # of processes of Ray and Dask that were killed


def run(place: Path, *arguments: str, patience: float = PATIENCE, **environ: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(RUN), *arguments], env={**os.environ, "TMPDIR": str(place), **environ}, cwd=place,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patience,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def check(text: str, *worlds: str) -> None:
    """Each has printed the same, and was killed in the middle."""
    assert OUTPUT in text
    for world in worlds:
        row = re.search(rf"^{world} +16  (\S.*?) +(\d+) +(\d+) +\d+  the same$", text, re.MULTILINE)
        assert row is not None, text
        assert 0 < int(row[2]) < 16  # had ended at the first kill
        assert int(row[3]) >= 1  # the handler that crashed, at least
        killed = re.findall(rf"{world} +kill -9 \d+, (.+):", text)
        assert row[1].split(", ") == killed
        assert killed


def processes_of(place: Path) -> list[str]:
    """The commands of all processes that work in this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(place).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            pass
    return found


@pytest.mark.faults
@pytest.mark.timeout(PATIENCE + 10)
def test_one_program_and_jobs_print_the_same_though_they_are_killed(tmp_path: Path) -> None:
    status, text = run(tmp_path, "--parcels", "12", "sqlite", "process")
    assert status == 0, text
    check(text, "sqlite", "process")
    assert max(map(len, text.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


@pytest.mark.executors
@pytest.mark.full  # the test above has two of the worlds, and the executors' own tests kill the other engines
@pytest.mark.faults
@pytest.mark.timeout(2 * PATIENCE + 10)
@pytest.mark.parametrize(
    "worlds",
    [
        pytest.param(("sqlite", "fleet", "process", "dask"), id="without a cluster"),
        pytest.param(("ray",), id="ray", marks=pytest.mark.soak),
        pytest.param(("slurm",), id="slurm"),
    ],
)
def test_all_worlds_print_the_same_though_their_engines_are_killed(worlds: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="any-") as name:  # sockets are below it: a short path
        place = Path(name)
        place.chmod(0o755)
        status, text = run(place, *worlds, "--parcels", "12", patience=2 * PATIENCE)
        assert status == 0, text
        check(text, *worlds)
        assert [one.name for one in place.iterdir() if not one.name.startswith(LITTER)] == []
        assert processes_of(place) == []


@pytest.mark.timeout(PATIENCE + 10)
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, str(RUN), "process"], env={**os.environ, "TMPDIR": str(tmp_path)}, cwd=tmp_path,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: list(tmp_path.glob("*/process/jobs/*/pid")), 60)
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
        text, _ = demo.communicate(timeout=PATIENCE)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 130, text
    assert text.endswith("\ninterrupted\n")
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def test_worlds_that_are_not_there_say_what_they_need(tmp_path: Path) -> None:
    status, text = run(tmp_path, "slurm", PATH="/nowhere")
    assert "slurm        -  not here; it needs: apt-get install slurm-wlm munge\n" in text
    assert (status, text.splitlines()[-1]) == (1, "Nothing was run.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("moon",), f"there is no world 'moon'; there are {', '.join(WORLDS)}"),
        (("--parcels", "1"), "--parcels must be from 8 to 99, not 1"),
    ],
)
def test_wrong_arguments_are_reported(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    status, text = run(tmp_path, *arguments)
    assert status == 2
    assert text.endswith(f"error: {said}\n")


def test_a_world_that_prints_something_else_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(RUN.parent)
    spec = importlib.util.spec_from_file_location("worlds_run", RUN)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    demo = module.Demo(tmp_path, ["sqlite", "process"], 12)
    outcome = module.Outcome("a\n" * 12, 16, ("a daemon",), 5, 1, 3.0)
    demo.outcomes = {"sqlite": outcome, "process": outcome}
    assert demo.prove()
    demo.outcomes["process"] = outcome._replace(output="a\n" * 11 + "b\n")
    assert not demo.prove()
    assert re.search(r"^process .* DIFFERS$", capsys.readouterr().out, re.MULTILINE)
    del demo.outcomes["process"]
    assert not demo.prove()
    assert "FAILED, see above" in capsys.readouterr().out
