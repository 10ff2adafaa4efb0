"""The generated pages of the reference are those that docs/make.py writes now."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


@functools.cache  # on import, each xdist worker would write them
def pages() -> dict[str, str]:
    made: dict[str, str] = runpy.run_path(str(REFERENCE.parent / "make.py"))["pages"]()
    return made


def test_generated_pages_are_what_the_code_says() -> None:
    stale = [name for name, made in pages().items() if (REFERENCE / name).read_text(encoding="utf-8") != made]
    assert stale == [], "run `python docs/make.py`"


def test_each_setting_has_a_comment() -> None:
    rows = [line for line in pages()["configuration.md"].splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    assert [row for row in rows if "|  |" in row] == []
