"""mypy --strict on programs that use schedd, as their authors run it: without this project's options for their modules.

All other modules have the options of ``make lint``, as mypy keeps what it knows of a module by its options: so what
``make lint`` has read is not read again. It begins with a copy, since two at once would write into one cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.session import locked

ROOT = Path(__file__).parents[2]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
OF_LINT = ROOT / ".mypy_cache" / VERSION
CACHE = ROOT / ".mypy_cache" / "readme"
TIMEOUT = 200.0  # seconds: without its cache mypy reads everything anew
OF_PROGRAMS = """
[[tool.mypy.overrides]]
module = {modules}
warn_unreachable = false
disable_error_code = ["ignore-without-code", "truthy-bool"]
"""


def check(directory: Path, *files: Path | str, settings: Path) -> subprocess.CompletedProcess[str]:
    """Check these files, relative to ``directory``; ``settings`` is where the configuration goes."""
    config = settings / "pyproject.toml"
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ours = project[project.index("[tool.mypy]") : project.index("[tool.pytest")]
    config.write_text(ours + OF_PROGRAMS.format(modules=[Path(file).stem for file in files]), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--show-error-codes", "--no-error-summary", "--python-version", VERSION]
    command += ["--config-file", str(config), "--cache-dir", str(CACHE)]
    with locked("mypy"):
        _take_cache_of_lint()
        return subprocess.run(
            [*command, *map(str, files)],
            cwd=directory,
            env=os.environ | {"MYPYPATH": f"{ROOT}:{ROOT / 'examples' / 'shop'}"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )


def _take_cache_of_lint() -> None:
    """If it is younger than our own."""
    ours = CACHE / VERSION
    if _written(OF_LINT) > _written(ours):
        shutil.rmtree(ours, ignore_errors=True)
        shutil.copytree(OF_LINT, ours)


def _written(cache: Path) -> float:
    """When; 0 if there is none."""
    return max((file.stat().st_mtime for file in cache.glob("*.db")), default=0.0)
