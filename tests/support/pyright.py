"""Runs pyright on schedd as it is installed, and on programs that use it. ``make lint`` runs this file.

tasks/ and migrations/ are installed inside the package, where a type checker does not look for them in the checkout. So
this lays out a copy in which they are where they belong.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PLACES = {
    "schedd": "schedd",
    "scheduler": "scheduler",
    "tasks": "scheduler/tasks",
    "migrations": "scheduler/migrations",
    "examples": "examples",
}
# mypy --strict sees these already; pyright does not follow how sqlalchemy imports its own `exc` and `event`.
OFF = ("reportAttributeAccessIssue",)


def check(files: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """What pyright finds: ``file`` (relative), ``line`` (from 1), ``message`` and ``rule`` of each.

    With ``files`` (name: text) these are checked, strictly; else the package, and the examples strictly.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        for part, there in PLACES.items():
            shutil.copytree(ROOT / part, place / there, ignore=shutil.ignore_patterns("__pycache__"))
        for file, text in (files or {}).items():
            (place / file).write_text(text, encoding="utf-8")
        settings = {
            "include": [*files] if files else ["schedd", "scheduler", "examples"],
            "strict": [*files] if files else ["examples"],
            "exclude": ["**/__pycache__", "scheduler/django", "examples/django"],
            "typeCheckingMode": "basic",
            "pythonVersion": "3.11",
            "executionEnvironments": [
                {"root": "examples/shop", "extraPaths": ["."]},
                {"root": "examples/demo", "extraPaths": ["."]},
                {"root": "examples/worlds", "extraPaths": [".", "examples"]},
                {"root": "."},
            ],
        } | ({} if files else dict.fromkeys(OFF, False))
        (place / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
        done = subprocess.run(
            [*command, "--project", str(place)],
            env=os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.stdout.startswith("{"):
            raise RuntimeError(f"pyright did not run: {done.stdout}{done.stderr}")
        return [
            {
                "file": one["file"].removeprefix(f"{place}/"),
                "line": one["range"]["start"]["line"] + 1,
                "message": one["message"],
                "rule": one.get("rule", ""),
            }
            for one in json.loads(done.stdout)["generalDiagnostics"]
            if one["severity"] == "error"
        ]


def main() -> int:
    found = check()
    for one in found:
        print("{file}:{line}: {message} ({rule})".format(**one))
    print(f"pyright: {len(found)} errors" if found else "pyright: no errors")
    return min(1, len(found))


if __name__ == "__main__":
    sys.exit(main())
