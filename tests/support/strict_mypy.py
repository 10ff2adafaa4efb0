"""mypy --strict on programs that use schedd, as their authors run it: without this project's configuration.

All tests share one cache, so that only the first of them reads schedd and what it imports. ``make lint`` has another
cache: its options differ, so that each of the two would throw away what the other has written.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.session import locked

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".mypy_cache" / "readme"
TIMEOUT = 200.0  # seconds: without its cache mypy reads everything anew


def check(directory: Path, *files: Path | str, settings: Path) -> subprocess.CompletedProcess[str]:
    """Check these files, relative to ``directory``; ``settings`` is where an empty configuration goes."""
    config = settings / "mypy.ini"
    config.write_text("[mypy]\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--show-error-codes"]
    command += ["--no-error-summary", "--config-file", str(config), "--cache-dir", str(CACHE)]
    with locked("mypy"):
        return subprocess.run(
            [*command, *map(str, files)],
            cwd=directory,
            env=os.environ | {"MYPYPATH": f"{ROOT}:{ROOT / 'examples' / 'shop'}"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
