"""Puts what was measured into a page of docs/, between the two comments that name it."""

from __future__ import annotations

import re
from pathlib import Path

PERFORMANCE = Path(__file__).parents[1] / "docs" / "explanation" / "performance.md"


def put(name: str, text: str, page: Path = PERFORMANCE) -> None:
    """Replace what is between ``<!-- name: begin -->`` and ``<!-- name: end -->``. Raises ValueError without them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    old = page.read_text()
    new, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{text.strip()}\n{end}", old, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{page}: there is no place for {name}")
    page.write_text(new)
