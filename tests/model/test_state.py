"""The state machine, edge by edge; the truth table, against the design's; docs/reference/states.md, against both."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from scheduler.model import state as st
from scheduler.model.state import (
    CLAIMABLE,
    DEFAULT_OTHERWISE,
    END_BIT,
    HELD,
    LIVE,
    TERMINAL,
    TRANSITIONS,
    Otherwise,
    TaskState,
    When,
    edge_verdict,
    may_follow,
    satisfied_mask,
)

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "states.md").read_text(encoding="utf-8")

# The design's paragraph on states, step by step.
LEGAL = {
    *(("waiting", new) for new in ("scheduled", "failed", "skipped", "cancelled")),
    *(("scheduled", new) for new in ("claimed", "waiting", "cancelled")),
    *(("retry", new) for new in ("claimed", "scheduled", "cancelled")),
    *(("suspended", new) for new in ("claimed", "scheduled", "cancelled")),
    *(
        (old, new)
        for old in ("claimed", "running")
        for new in ("scheduled", "success", "failed", "dead", "retry", "suspended", "cancelled")
    ),
    ("claimed", "running"),
    *((old, new) for old in ("success", "failed", "dead", "cancelled", "skipped") for new in ("scheduled", "waiting")),
}

# The design's truth table, written out: (parent's end, when, otherwise) -> what becomes of the edge.
TABLE = """
success    success   fail satisfied   skip satisfied   run satisfied   wait satisfied
success    failure   fail fail        skip skip        run satisfied   wait wait
success    finished  fail satisfied   skip satisfied   run satisfied   wait satisfied
failed     success   fail fail        skip skip        run satisfied   wait wait
failed     failure   fail satisfied   skip satisfied   run satisfied   wait satisfied
failed     finished  fail satisfied   skip satisfied   run satisfied   wait satisfied
dead       success   fail fail        skip skip        run satisfied   wait wait
dead       failure   fail satisfied   skip satisfied   run satisfied   wait satisfied
dead       finished  fail satisfied   skip satisfied   run satisfied   wait satisfied
cancelled  success   fail fail        skip skip        run satisfied   wait wait
cancelled  failure   fail satisfied   skip satisfied   run satisfied   wait satisfied
cancelled  finished  fail satisfied   skip satisfied   run satisfied   wait satisfied
skipped    success   fail skip        skip skip        run satisfied   wait wait
skipped    failure   fail skip        skip skip        run satisfied   wait wait
skipped    finished  fail satisfied   skip satisfied   run satisfied   wait satisfied
"""
CELLS = [
    (end, when, rest[i], rest[i + 1])
    for end, when, *rest in (line.split() for line in TABLE.strip().splitlines())
    for i in range(0, 8, 2)
]


def test_every_step_is_legal_or_not() -> None:
    assert {(old, new) for old in TaskState for new in TaskState if may_follow(old, new)} == set(LEGAL)


def test_ends() -> None:
    assert {s for s in TaskState if s.terminal} == TERMINAL
    assert {"success", "failed", "dead", "cancelled", "skipped"} == TERMINAL
    assert set(TaskState) == LIVE | TERMINAL
    assert not LIVE & TERMINAL
    assert {s for s in TaskState if TaskState.CLAIMED in TRANSITIONS[s]} == CLAIMABLE
    assert {"claimed", "running"} == HELD
    assert all(TRANSITIONS.values())  # whatever has ended can be run again


def test_whatever_lives_can_be_cancelled() -> None:
    assert {s for s in TaskState if may_follow(s, TaskState.CANCELLED)} == LIVE


def test_codes_are_stored_and_never_change() -> None:
    names = [
        "waiting",
        "scheduled",
        "retry",
        "suspended",
        "claimed",
        "running",
        "success",
        "failed",
        "dead",
        "cancelled",
        "skipped",
    ]
    assert [s.code for s in map(TaskState, names)] == list(range(11))
    assert [TaskState.from_code(code) for code in range(11)] == names
    constants = [st.WAITING, st.SCHEDULED, st.RETRY, st.SUSPENDED, st.CLAIMED, st.RUNNING]
    constants += [st.SUCCESS, st.FAILED, st.DEAD, st.CANCELLED, st.SKIPPED]
    assert constants == list(range(11))
    assert {s for s in TaskState if s.code >= st.FIRST_TERMINAL} == TERMINAL
    assert [list(When), list(Otherwise)] == [
        ["success", "failure", "finished"],
        ["fail", "skip", "run", "wait"],
    ]


def test_short_names() -> None:
    simple = {s.value: s.simple for s in TaskState}
    assert simple == {
        "waiting": "WaitingDeps",
        **dict.fromkeys(("scheduled", "claimed", "suspended"), "Pending"),
        "running": "Running",
        "retry": "Retrying",
        "success": "Completed",
        **dict.fromkeys(("failed", "dead", "skipped", "cancelled"), "Failed"),
    }


def test_the_table_is_whole() -> None:
    assert {cell[:3] for cell in CELLS} == set(itertools.product(TERMINAL, When, Otherwise))
    assert len(CELLS) == 5 * 3 * 4


def test_judge() -> None:
    judged = [
        (end, when, otherwise, edge_verdict(TaskState(end), When(when), Otherwise(otherwise)).name.lower())
        for end, when, otherwise, _ in CELLS
    ]
    assert judged == list(CELLS)


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("otherwise", Otherwise)
def test_mask_says_what_satisfies(when: When, otherwise: Otherwise) -> None:
    mask = satisfied_mask(when, otherwise)
    satisfying = {end for end, w, o, verdict in CELLS if (w, o, verdict) == (when, otherwise, "satisfied")}
    assert {end for end in TERMINAL if mask & END_BIT[end]} == satisfying
    assert 0 <= mask < 16


def test_defaults() -> None:
    assert DEFAULT_OTHERWISE[When.SUCCESS] is Otherwise.FAIL
    assert DEFAULT_OTHERWISE[When.FAILURE] is Otherwise.SKIP


def test_document_draws_exactly_the_table() -> None:
    diagram = DOCUMENT.partition("```mermaid")[2].partition("```")[0]
    arrows = re.findall(r"^ +(\S+) --> ([^\s:]+)", diagram, re.MULTILINE)
    assert len(arrows) == len(set(arrows)) == diagram.count("-->")
    drawn = {(old, new) for old, new in arrows if "[*]" not in (old, new)}
    assert drawn == {(old.value, new.value) for old in TaskState for new in TRANSITIONS[old]}
    assert {new for old, new in arrows if old == "[*]"} == {"waiting", "scheduled", "failed", "skipped"}
    assert {old for old, new in arrows if new == "[*]"} == {s for s in TaskState if not TRANSITIONS[s]}


def test_document_lists_every_state() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| .+ \|$", DOCUMENT, re.MULTILINE)
    assert rows == [(s.value, s.simple) for s in TaskState]


def test_document_has_the_truth_table() -> None:
    head = "| parent ends as | when=success | when=failure | when=finished |"
    body = DOCUMENT.partition(head)[2].split("\n\n")[0]
    table: dict[tuple[str, str], str] = {}
    for line in body.strip().splitlines()[1:]:
        ends, *verdicts = (cell.strip() for cell in line.strip("|").split("|"))
        for end in ends.split(", "):
            table |= {(end, when): verdict for when, verdict in zip(When, verdicts, strict=True)}
    assert table.keys() == set(itertools.product(TERMINAL, When))
    for (end, when), verdict in table.items():
        assert verdict == sentence(end, when), (end, when)


def sentence(end: str, when: str) -> str:
    """A cell of the document, from the cells of the table written out above."""
    found = {o: verdict for e, w, o, verdict in CELLS if (e, w) == (end, when)}
    if set(found.values()) == {"satisfied"}:
        return "satisfied"
    if found == {"fail": "fail", "skip": "skip", "run": "satisfied", "wait": "wait"}:
        return f"*otherwise* (default {DEFAULT_OTHERWISE[When(when)]})"
    assert found == {"fail": "skip", "skip": "skip", "run": "satisfied", "wait": "wait"}
    return "skip, unless *otherwise* is run or wait" if when == "success" else "skip, likewise"
