"""The recorder of the doors says the same twice, and what it calls exists."""

from __future__ import annotations

from golden.record import methods, record


def test_two_recordings_are_equal_and_no_call_is_unknown() -> None:
    first = record(methods)
    assert first == record(methods)
    wrong = [line for line in first if isinstance(line["answer"], dict) and "Attribute" in line["answer"]["raised"]]
    assert not wrong
    by_call = {line["call"]: line for line in first}
    assert by_call["jobs.cancel_task({scheduled})"]["changed"]["schedd_tasks"] == {"gone": 1, "new": 1}
    assert by_call["jobs.get_task({dead})"]["changed"] == {}
