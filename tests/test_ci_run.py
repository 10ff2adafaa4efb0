"""``.ci/run``: what failed in a large run is run again once, and named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.session import TESTS

SCRIPT = TESTS.parent / ".ci" / "run"
MACHINE = TESTS / "machine.sh"
AGAIN = "failed once, passed when run again"
# A make whose test target fails the tests that the next line of the plan has; an empty line: all pass.
MAKE = """#!/usr/bin/env bash
echo "$*" >>calls
[ "$1" != lint ] || [ "$(cat plan)" != unclean ] || { echo "unclean code"; exit 2; }
case $1 in test | transports) ;; *) exit 0 ;; esac
[ "$1" = test ] || [ -s plan ] || exit 0
plan=$(head -n 1 plan)
sed -i 1d plan
cache=${PYTEST_ADDOPTS#-o cache_dir=}
mkdir -p "$cache/v/cache"
python3 -c 'import json, sys; print(json.dumps(dict.fromkeys(sys.argv[1].split("|"), True)))' "$plan" \\
  >"$cache/v/cache/lastfailed"
[ -n "$plan" ] || { rm "$cache/v/cache/lastfailed"; echo "=== 9 passed in 1.00s ==="; exit 0; }
[ "$plan" != broken ] || { echo "!!!!!!!! xdist.dsession.Interrupted: session !!!!!!!!"; }
echo "=== 1 failed, 8 passed in 1.00s ==="
exit 2
"""


def run(place: Path, *plan: str) -> tuple[int, str, list[str]]:
    """Run the script where each run of the tests fails what ``plan`` says: status, output, calls of make."""
    (place / ".ci").mkdir()
    shutil.copy(SCRIPT, place / ".ci" / "run")
    (place / "tests").mkdir()
    shutil.copy(MACHINE, place / "tests" / "machine.sh")
    (place / "plan").write_text("".join(f"{line}\n" for line in plan))
    fakes = place / "bin"
    fakes.mkdir()
    pythons = (f"python3.{minor}" for minor in (12, 13))  # which take a second to say what they have
    for name, text in (
        ("make", MAKE),
        ("apt-get", "#!/bin/sh\nexit 1\n"),
        *((name, "#!/bin/sh\n") for name in pythons),
    ):
        (fakes / name).write_text(text)
        (fakes / name).chmod(0o755)
    path = f"{fakes}:{os.environ['PATH']}"
    done = subprocess.run(
        [place / ".ci" / "run"], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    calls = [call for call in (place / "calls").read_text().splitlines() if call.startswith("test")]
    return done.returncode, done.stdout, calls


@pytest.mark.parametrize("works", [True, False])
def test_a_missing_program_is_installed_and_looked_for_again(tmp_path: Path, works: bool) -> None:
    make = f"echo '#!/bin/sh' >{tmp_path}/thing && chmod +x {tmp_path}/thing"
    install = f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n[ "$2" = update ] || {{ {make if works else "exit 1"}; }}\n'
    for name, text in (("apt-get", install), ("id", "#!/bin/sh\necho 0\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    program = f"set -euo pipefail\n. {MACHINE}\nfor n in 1 2; do get Thing thing a b || echo gone; done"
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", program], env={"PATH": path}, capture_output=True, text=True, check=True)
    first = ["Debian's Thing is not installed: installing it"]
    wanted = first if works else [*first, "It could not be installed:", "gone"] * 2
    assert done.stdout.splitlines() == wanted
    calls = (tmp_path / "calls").read_text().splitlines()
    packages = [call.split()[-1] for call in calls]
    assert packages == (["update", "a", "b"] if works else ["update", "a"] * 2)


def test_a_run_that_passes_is_not_repeated(tmp_path: Path) -> None:
    status, output, calls = run(tmp_path, "")
    assert (status, len(calls)) == (0, 1)
    assert "\npytest: === 9 passed in 1.00s ===\n" in output
    assert AGAIN not in output
    assert "Failovers (cases 67 and 68) are tested with two servers of " in output
    between, newest = (f"PYTHON={tmp_path}/bin/python3.{minor} EXTRAS=quick" for minor in (12, 13))
    others = [call for call in (tmp_path / "calls").read_text().splitlines() if call.startswith(("quick", "django"))]
    assert others[0].startswith(f"quick {between} QUICK=cli/help ")
    assert others[1:] == [f"quick {newest}", f"django {newest}"]


def test_code_that_lint_refuses_fails_the_run_before_its_tests(tmp_path: Path) -> None:
    status, output, calls = run(tmp_path, "unclean")
    assert (status, calls) == (2, [])
    assert output.endswith("unclean code\n")


def test_what_passes_when_run_again_is_named(tmp_path: Path) -> None:
    status, output, calls = run(tmp_path, "tests/a.py::b[fail over]|tests/a.py::c", "")
    assert status == 0
    again = "JOBS=0 PYTEST_ARGS=--last-failed --last-failed-no-failures none"
    assert calls == ["test", f"test {again}"]
    assert f"{AGAIN}\n  tests/a.py::b[fail over]\n  tests/a.py::c\n" in output
    assert "\npytest: === 1 failed, 8 passed in 1.00s ===\npytest, run again: === 9 passed in 1.00s ===\n" in output


def test_what_fails_again_fails_the_run(tmp_path: Path) -> None:
    status, output, calls = run(tmp_path, "tests/a.py::b|tests/a.py::c", "tests/a.py::c")
    assert (status, len(calls)) == (2, 2)
    assert f"{AGAIN}\n  tests/a.py::b\n" in output
    assert "  tests/a.py::c" not in output


def test_transports_are_run_again_in_the_same_way(tmp_path: Path) -> None:
    status, output, calls = run(tmp_path, "", "tests/a.py::b", "")
    assert (status, len(calls)) == (0, 1)
    assert f"{AGAIN}\n  tests/a.py::b\n" in output
    assert "\npytest, transports: === 1 failed" in output
    assert "\npytest, transports, run again: === 9 passed" in output


@pytest.mark.parametrize("plan", ["|".join(f"tests/a.py::t{n}" for n in range(11)), "broken"])
def test_many_failures_and_runs_that_broke_off_are_not_run_again(tmp_path: Path, plan: str) -> None:
    status, output, calls = run(tmp_path, plan, "")
    assert (status, len(calls)) == (2, 1)
    assert AGAIN not in output
