"""Checks the types of schedd as macOS and Windows have them. ``make elsewhere`` runs this file.

So a name that a system lacks is an error, wherever it stands, but for what is refused there before it is reached.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.elsewhere import REFUSED

ROOT = Path(__file__).parents[2]


def check(system: str) -> list[str]:
    """What mypy finds there."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--platform", system, "--no-warn-unreachable", "--no-pretty"),
            *("--no-error-summary", "--cache-dir", ROOT / ".mypy_cache" / system),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"mypy did not run: {done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if not line.startswith(REFUSED[system])]


def main() -> int:
    found = {system: check(system) for system in REFUSED}
    for system, lines in found.items():
        print(*lines, f"mypy as on {system}: {len(lines) or 'no'} errors", sep="\n")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
