"""``schedd``, the package of the public names, ``python -m``, and the word where another ``scheduler`` hides ours."""

from __future__ import annotations

import ast
import operator
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import schedd
import scheduler

ROOT = Path(__file__).parents[1]
THEIRS = "__version__ = '0.8.11'\n__all__ = ['Scheduler']\nclass Scheduler: ...\n"  # as the package on PyPI begins
BOTH = "cannot live in one environment"


def python(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=place, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_names_are_those_of_the_package() -> None:
    assert schedd.__all__ == scheduler.__all__
    assert {name for name in dir(schedd) if not name.startswith("_")} == set(scheduler.__all__)
    for name in scheduler.__all__:
        assert getattr(schedd, name) is getattr(scheduler, name)
    with pytest.raises(AttributeError, match="nothing_such"):
        operator.attrgetter("nothing_such")(schedd)


def test_checkers_of_types_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "schedd" / "__init__.py").read_text(encoding="utf-8"))
    typed = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "scheduler"]
    assert {(one.name, one.asname) for node in typed for one in node.names} == {
        (name, name) for name in scheduler.__all__
    }


def test_importing_it_imports_nothing_else(tmp_path: Path) -> None:
    code = "import sys; before = {'__future__', *sys.modules}; import schedd; print(sorted(set(sys.modules) - before))"
    assert python(tmp_path, "-c", code).stdout == "['schedd']\n"


@pytest.mark.parametrize("module", ["scheduler", "schedd"])
def test_both_programs_start_as_modules(tmp_path: Path, module: str) -> None:
    assert python(tmp_path, "-m", module, "--version").stdout.startswith("schedd ")
    assert "usage: schedd " in python(tmp_path, "-m", module, "--help").stdout
    done = python(tmp_path, "-m", module, "status", "--help")
    assert (done.returncode, done.stdout.startswith("Usage: schedctl status")) == (0, True)
    assert python(tmp_path, "-m", module, "nothing").returncode == 2


def test_a_scheduler_of_the_project_is_named(tmp_path: Path) -> None:
    (tmp_path / "scheduler.py").write_text("jobs = 1\n")
    said = f"{tmp_path / 'scheduler.py'} hides the package scheduler, which schedd needs: give it another name"
    for line in ("from schedd import Scheduler", "import schedd; schedd.task"):
        done = python(tmp_path, "-c", line)
        assert done.stderr.splitlines()[-1] == f"ImportError: {said}"
    for command in ("daemon", "control"):
        done = python(tmp_path, "-c", f"import sys; from schedd.commands import {command}; sys.exit({command}())")
        assert done.returncode == 2
        assert done.stderr.partition(": ")[2] == f"{said}\n"


def test_the_package_of_pypi_in_our_place_is_named(tmp_path: Path) -> None:
    """Installed last, it has written its files over ours."""
    shutil.copytree(ROOT / "schedd", tmp_path / "schedd")
    shutil.copytree(ROOT / "scheduler", tmp_path / "scheduler", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "scheduler" / "__init__.py").write_text(THEIRS)
    done = python(tmp_path, "-c", "from schedd import Scheduler")
    assert BOTH in done.stderr.splitlines()[-1]
    done = python(tmp_path, "-c", "from schedd.commands import control; control()")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "pip uninstall scheduler" in done.stderr


def test_the_package_of_pypi_below_ours_is_named(tmp_path: Path) -> None:
    """Installed first, it has left files beside ours, and no longer works itself."""
    shutil.copytree(ROOT / "schedd", tmp_path / "schedd")
    shutil.copytree(ROOT / "scheduler", tmp_path / "scheduler", ignore=shutil.ignore_patterns("__pycache__"))
    assert python(tmp_path, "-c", "import scheduler").stderr == ""
    (tmp_path / "scheduler" / "base").mkdir()
    (tmp_path / "scheduler" / "base" / "definition.py").write_text("")
    done = python(tmp_path, "-c", "import scheduler; print(scheduler.Priority.HIGH.name)")
    assert (done.stdout, done.returncode) == ("HIGH\n", 0)
    assert BOTH in done.stderr
