"""Writes the pages of the reference that are made of tables in the code.

    python docs/make.py        (make man)

The pages are kept in the repository, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scheduler.config.alerts import AlertRules
from scheduler.store.read.problems import TABLE, ProblemType, Voice

HERE = Path(__file__).resolve().parent
PROBLEMS = HERE / "reference" / "problems.md"
HEAD = """\
# Problems

This page is made of the table of problems in `scheduler/store/read/problems.py`, by `docs/make.py`.

`schedctl status` lists problems, the worst first. `schedctl status --check` ends with status 1 if there is one. In JSON
each has its name below as `problem`, with `text`, `since`, `number`, `tasks` and `remedy`. The console's first page
shows the same sentences, each with its remedy. `schedctl why ID` says which problem a task has.

An alert fires when a problem has lasted for the time that its rule sets, a minute by default: see
[Alerts](../guides/alerts.md).
"""


def problems() -> str:
    """The page of the problems."""
    return "\n".join([HEAD, *(line for row in TABLE for line in _problem(row))])


def _problem(row: ProblemType) -> Iterator[str]:
    yield f"## {row.name}\n"
    yield f"{row.meaning}\n"
    yield f"- *Remedy:* {row.remedy}"
    yield f"- *Told by:* {', '.join(_voice(row, voice) for voice in row.voices)}."
    if row.after:
        yield f"- *Counts after:* {row.after:g} seconds."
    yield ""


def _voice(row: ProblemType, voice: Voice) -> str:
    if voice is Voice.DOCTOR:
        return f"`doctor` (check *{row.check}*)"
    if voice is Voice.ALERT:
        after = getattr(getattr(AlertRules(), row.rule), "after", None)
        return f"alert rule `{row.rule}`" + ("" if after is None else f" (after {after:g} s)")
    return "the console's first page" if voice is Voice.PAGE else f"`{voice.value}`"


if __name__ == "__main__":
    PROBLEMS.write_text(problems(), encoding="utf-8")
