"""An interrupt while ``schedd`` or ``schedctl`` starts ends it at once, and shows no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Raises the interrupt in the import of a module, as a person's key may do at any time.
PROGRAM = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupting())
sys.argv = ["it", *{arguments!r}]
from {where} import {function}
sys.exit({function}())
"""


@pytest.mark.parametrize(
    ("where", "function", "arguments", "module"),
    [
        ("scheduler.daemon", "run", [], "scheduler.daemon.main"),
        ("scheduler.daemon", "run", [], "scheduler.config.model"),
        ("scheduler.daemon", "run", [], "structlog"),
        ("scheduler.daemon", "run", [], "sqlalchemy"),
        ("scheduler.cli", "main", ["list"], "click"),
        ("scheduler.cli", "main", ["list"], "scheduler.cli.root"),
        ("scheduler.cli", "main", ["list"], "sqlalchemy"),
    ],
)
def test_an_interrupt_in_an_import(
    tmp_path: Path, where: str, function: str, arguments: list[str], module: str
) -> None:
    program = PROGRAM.format(where=where, function=function, arguments=arguments, module=module)
    environ = {**os.environ, "SCHEDD_STORE__URL": f"sqlite:///{tmp_path / 'jobs.db'}"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (-signal.SIGINT, 130), done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1


@pytest.mark.parametrize(("where", "function"), [("scheduler.daemon", "run"), ("scheduler.cli", "main")])
def test_nothing_is_imported_before_an_interrupt_is_taken(where: str, function: str) -> None:
    """What Python and the script of the installer import before is not ours."""
    code = (
        f"import importlib, os, sys; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules); "
        f"from {where} import {function}; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    ours = {"scheduler", where, "scheduler.interrupts"}
    assert set(done.stdout.split()) <= ours | {"__future__"}, done.stderr
