"""``pytest --forks``: each test runs once and is told of, whatever becomes of its process."""

from __future__ import annotations

import pytest

from support.forks import CHUNK
from support.session import TESTS

MANY = 3 * CHUNK
FILE = f"""
import os, pathlib, time
import pytest

@pytest.fixture(scope="session")
def made():
    yield
    pathlib.Path(f"ended-{{os.getpid()}}").touch()

@pytest.mark.parametrize("number", range({MANY}))
def test_each(number, made):
    with open(f"ran-{{os.getpid()}}", "a") as ran:
        ran.write(f"{{number}} ")

@pytest.mark.alone
@pytest.mark.parametrize("number", [1, 2])
def test_alone(number):
    assert len(list(pathlib.Path().glob("ended-*"))) >= 1  # the other process has gone
    os.mkdir("one")
    time.sleep(0.01)
    os.rmdir("one")
"""
BAD = """
import os
import pytest

def test_first(): pass
def test_dies(): os._exit(1)
def test_after(): pass
def test_warns():
    import warnings
    warnings.warn("look at this")
def test_fails(): print("what it printed"); assert 1 == 2
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makeini("[pytest]\nmarkers = alone\nfilterwarnings = default\n")
    return pytester.runpytest_subprocess("-p", "support.forks", *arguments)


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    return pytester


def test_each_test_runs_once_and_those_that_measure_time_last(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FILE)
    run(pytester, "--forks", "2").assert_outcomes(passed=MANY + 2)
    ran = [path.read_text().split() for path in pytester.path.glob("ran-*")]
    assert sorted(int(number) for numbers in ran for number in numbers) == list(range(MANY))
    assert len(list(pytester.path.glob("ended-*"))) == len(ran)  # what a session shares is ended once in each


def test_a_process_that_dies_fails_its_test_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(BAD)
    done = run(pytester, "--forks", "1")
    done.assert_outcomes(passed=3, failed=2, warnings=1)
    done.stdout.fnmatch_lines(["*process 0 ended while it ran this test*", "*what it printed*"])
    done.stdout.fnmatch_lines_random(["FAILED *::test_dies*", "FAILED *::test_fails*", "*look at this"])
    run(pytester, "--last-failed", "-k", "test_fails").assert_outcomes(failed=1, deselected=1)


def test_a_run_stops_at_the_first_failure_if_asked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n\n@pytest.mark.parametrize('n', range(100))\ndef test_it(n): assert n")
    done = run(pytester, "--forks", "1", "-x")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["!!!!*stopping after 1 failures*"])
