"""Puts what was measured into the page that has a place for it: two comments that name it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PERFORMANCE = HERE.parent / "docs" / "explanation" / "performance.md"
PAGES = (PERFORMANCE, HERE / "README.md")


def put(name: str, text: str, pages: Sequence[Path] = PAGES) -> None:
    """Replace what is between ``<!-- name: begin -->`` and ``<!-- name: end -->``. Raises ValueError without them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    place = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    for page in pages:
        new, count = place.subn(lambda _: f"{begin}\n{text.strip()}\n{end}", page.read_text())
        if count == 1:
            page.write_text(new)
            return
    raise ValueError(f"{' and '.join(map(str, pages))}: there is no place for {name}")
