"""Prints what extras of schedd need, without schedd itself: ``python tests/support/extras.py quick``."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def requirements(extras: list[str]) -> list[str]:
    """Those of all schedd and of these extras, with the extras that they name in turn."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    found, left = list(project["dependencies"]), list(extras)
    while left:
        for one in project["optional-dependencies"][left.pop()]:
            own = re.fullmatch(r"schedd\[(.+)\]", one)
            if own:
                left += own[1].split(",")
            else:
                found.append(one)
    return sorted(set(found))


if __name__ == "__main__":
    print(*requirements(sys.argv[1].split(",")), sep="\n")
