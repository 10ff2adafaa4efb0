"""The one language for "which tasks": every door reads the same words, and finds the same tasks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler import ConfigError, Scheduler, task
from scheduler.model.task_filter import TaskFilter
from scheduler.operations.filter import FilterError, parse
from scheduler.store.read.search import search
from scheduler.testing import FakeClock, drain
from support.databases import Database

NOW = 1_800_000_000_000_000
HOUR = 3_600_000_000


@task
def Mail(ctx: Any, to: str, customer: Any = None) -> None:
    if to.startswith("bad"):
        raise TimeoutError("no answer")


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler.for_testing(url=database.url, clock=FakeClock(datetime(2026, 3, 1, tzinfo=UTC)))
    made.register(Mail)
    yield made
    made.close()


@pytest.fixture
def ids(jobs: Scheduler) -> dict[str, int]:
    """One dead letter that ended 3 h ago and one 1 h ago, and three that wait for their time."""
    clock = jobs.clock
    assert isinstance(clock, FakeClock)
    made = {"old": jobs.task(Mail, "bad old", customer=42).correlation("o 7").schedule()}
    drain(jobs)
    clock.advance(2 * 3600)
    made["new"] = jobs.task(Mail, "bad new", customer="42").queue("etl").schedule()
    drain(jobs)
    made["soon"] = jobs.task(Mail, "soon", customer={"id": 42}).after(3600 + 1800).schedule()
    clock.advance(3600)
    made["late"] = jobs.task(Mail, "late", customer=[41, 42]).after(5 * 3600).schedule()
    made["none"] = jobs.task(Mail, "none").key("a*b").after(5 * 3600).schedule()
    return {name: int(task_id) for name, task_id in made.items()}


FOUND = [
    ("kind:Mail", "old new soon late none"),
    ("state:dead", "old new"),
    ("-state:dead", "soon late none"),
    ("-queue:etl", "old soon late none"),
    ("class:Timeout*", "old new"),
    ("error:ANSWER", "old new"),
    ("answer", "old new"),
    ("stored:<2h", "new soon late none"),
    ("stored:<30m", "late none"),
    ("stored:>30m", "old new soon"),
    ("-stored:>30m", "late none"),
    ("stored:>30m stored:<2h", "new soon"),
    ("stored:<2026-03-01T01:00Z", "old"),
    ("stored:>2026-03-01T03:00Z", "late none"),
    ("since:2h", "new soon late none"),
    ("until:2h", "old"),
    ("ended:<2h", "new"),
    ("ended:>2h", "old"),
    ("-ended:<2h", "old soon late none"),
    ("due:>30m", "old new"),
    ("due:<-1h", "late none"),
    ("due:<2h -state:dead", "soon late none"),
    ("customer=42", "old new late"),
    ("customer:=42", "old"),
    ('customer:="42"', "new"),
    ("""'customer:="42"'""", "new"),
    ("customer.id=42", "soon"),
    ("-customer=42", "soon none"),
    ("payload.to:bad*", "old new"),
    ("payload.to=bad*", ""),
    ("correlation:'o 7'", "old"),
    ("correlation:o*", "old"),
    ("-correlation:o*", "new soon late none"),
    ("key:a*b", "none"),
]


def names(ids: dict[str, int], found: Any) -> str:
    return " ".join(name for name, task_id in ids.items() if task_id in found)


@pytest.mark.both_databases
def test_a_filter_finds_the_same_through_lists_and_changes(jobs: Scheduler, ids: dict[str, int]) -> None:
    for text, expected in FOUND:
        assert names(ids, [t.id for t in jobs.list_tasks(f"kind:Mail {text}")]) == expected, text
        with jobs.database.read() as tx:
            wanted = parse(text, tx.now)
            assert names(ids, [t.id for t in search(tx, wanted).tasks]) == expected, text
        dead = " ".join(name for name in expected.split() if name in ("old", "new"))
        if text == "answer":
            continue  # verbs want to be told the field
        assert names(ids, [t.id for t in jobs.dead_letters.list(text)]) == dead, text
        if text.startswith("state"):
            continue
        assert names(ids, jobs.bulks.plan("rerun", text).ids) == dead, text
        assert names(ids, jobs.retry_tasks(text, dry_run=True).ids) == dead, text
        live = " ".join(name for name in expected.split() if name not in ("old", "new"))
        assert names(ids, jobs.cancel_tasks(text, dry_run=True).ids) == live, text


def test_a_keyword_is_what_it_says(jobs: Scheduler, ids: dict[str, int]) -> None:
    """No character of a keyword stands for others, and a value of a payload is one of JSON."""
    assert [int(t.id) for t in jobs.list_tasks(key="a*b")] == [ids["none"]]
    jobs.task(Mail, "x").key("aab").after(60).schedule()
    assert jobs.cancel_tasks(key="a*b", dry_run=True).ids == [ids["none"]]
    assert jobs.retry_tasks(payload={"customer": 42}, dry_run=True).ids == [ids["old"]]
    assert jobs.retry_tasks("queue:default", payload={"customer": "42"}, dry_run=True).ids == []
    assert [int(t.id) for t in jobs.list_tasks(payload={"customer": 42}, older_than="2h")] == [ids["old"]]
    assert [int(t.id) for t in jobs.iter_tasks(newer_than="30m", key="a*b", queue=None)] == [ids["none"]]
    assert [int(t.id) for t in jobs.dead_letters.list(queue="etl", newer_than="2h")] == [ids["new"]]
    assert [group.id for group in jobs.dead_letters.groups(ids=[ids["old"]])] == [ids["old"]]
    with pytest.raises(ConfigError, match="there is no filter older: by"):
        jobs.list_tasks(older="2h")  # type: ignore[call-arg]


def test_a_fairness_key_is_a_word(jobs: Scheduler) -> None:
    """Whatever its weight, in its own case, and with no sign that stands for others."""
    given = [("ada", None), ("ada", 2), ("Ada", None), ("a%a", None), ("a*", 0.5), (None, 3), (None, None)]
    made = []
    for key, weight in given:
        one = jobs.task(Mail, "x", customer="~ada")
        one = one if key is None else one.fairness_key(key)
        made.append(int((one if weight is None else one.fairness_weight(weight)).schedule()))
    found = {text: [made.index(t.id) for t in jobs.list_tasks(text)] for text in ("fairness:ada", "fairness_key:a*")}
    assert found == {"fairness:ada": [1, 0], "fairness_key:a*": [4]}
    assert [made.index(t.id) for t in jobs.list_tasks("-fairness:ada,Ada")] == [6, 5, 4, 3]
    assert jobs.cancel_tasks(fairness_key="a%a").ids == [made[3]]
    assert jobs.retry_tasks(fairness_key="a%a", status="cancelled", dry_run=True).ids == [made[3]]


def test_ids_are_words_too(jobs: Scheduler, ids: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """And an index leads to them, however many tasks are newer."""
    monkeypatch.setattr("scheduler.store.read.search.WINDOW", 1)
    text = f"id:{ids['old']},{ids['none']} kind:Mail"
    with jobs.database.read() as tx:
        assert [t.id for t in search(tx, parse(text, tx.now)).tasks] == [ids["none"], ids["old"]]
    assert jobs.cancel_tasks(text).ids == [ids["none"]]
    entry = jobs.audit(action="cancel")[-1]
    assert entry.filter is not None
    assert (entry.filter["kind"], entry.filter["ids"]) == ("Mail", f"{ids['old']}, {ids['none']}")


MISTAKES = [
    ("nosuch:1", "no field nosuch"),
    ("stored:2h", "takes an age or a time behind < or >"),
    ("ended:<soon", "neither how long ago"),
    ("a:=[", "not JSON"),
    ("mailbox", "neither an id nor a word"),
    ("pin=1", "payload.pin is masked"),
    ("payload.pin:1", "payload.pin is masked"),
    ("-pin:=1", "payload.pin is masked"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(FilterError, match=message) as caught:
        parse(text, NOW, lambda path: path == "pin", bare=False)
    assert caught.value.masked is ("masked" in message)


def test_the_audit_says_what_was_chosen_by() -> None:
    def chosen(text: str) -> dict[str, Any]:
        return parse(text, NOW).chosen()

    assert chosen("kind:A,B -queue:etl state:dead a.b=1 -c:=2") == {
        "kind": ["A", "B"],
        "-queue": "etl",
        "status": ["dead"],
        "payload": {"a.b": "1", "-c": 2},
    }
    assert chosen("stored:>1h ended:<1h") == {"before": "2027-01-15T07:00:00Z", "ended_since": "2027-01-15T07:00:00Z"}
    assert TaskFilter().chosen() == {}
