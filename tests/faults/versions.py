"""Task types of two versions of one program. In no module that a daemon reads: two of them have the same kind."""

from __future__ import annotations

from typing import Any

from faults.kinds import Work, _link
from scheduler import Context, Task


class Letter(Task, kind="Letter"):
    """As an old program knows it."""

    to: str

    def run(self, ctx: Context) -> str:
        _link().note("start", ctx)
        _link().note("end", ctx)
        return self.to


class NewLetter(Task, kind="Letter", schema_version=2):
    """As a new program knows it."""

    recipients: list[str]

    def run(self, ctx: Context) -> list[str]:
        _link().note("start", ctx)
        _link().note("end", ctx)
        return self.recipients

    @staticmethod
    def upgrade(payload: dict[str, Any], version: int) -> dict[str, Any]:
        return {"recipients": ["upgraded", payload["to"]]}


class Fresh(Work):
    """A kind that only new programs know."""
