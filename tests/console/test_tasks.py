"""The list of tasks: its filter language, its form, saved views, and what is done to many at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler import Scheduler, task
from scheduler.console.gate import Gate
from scheduler.console.pages.tasks import list_command
from scheduler.operations.filter import FilterError, parse, quoted, words_of
from scheduler.testing import FakeClock, drain
from support.consoles import ask, console_on, link, post, served
from support.databases import Database, one_database

pytestmark = pytest.mark.both_databases

NOW = 1_800_000_000_000_000


@task
def Mail(ctx: Any, to: str, number: int = 0, password: str = "") -> None:
    if to.startswith("bad"):
        raise ValueError("Mailbox FULL")


@task
def Etl(ctx: Any, part: str) -> None: ...


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler.for_testing(url=database.url, clock=FakeClock(datetime.now(UTC)))
    made.register(Mail)
    made.register(Etl)
    yield made
    made.close()


@pytest.fixture
def ids(jobs: Scheduler) -> dict[str, int]:
    made = {
        "ada": jobs.task(Mail, "ada@example.com", number=2**60).key("a_b").subject("ada").schedule(),
        "bad": jobs.task(Mail, "bad@example.org", number=5).queue("bulk").schedule(),
        "long": jobs.task(Mail, "eve@example.com " + "x" * 3000, number=7).schedule(),
        "etl": jobs.task(Etl, "one").queue("etl").schedule(),
        "low": jobs.task(Etl, "two").priority("low").correlation("order 7").after(3600).schedule(),
    }
    drain(jobs)
    return {name: int(task_id) for name, task_id in made.items()}


FOUND = (
    ("", "ada bad long etl low"),
    ("state:dead", "bad"),
    ("state:Completed", "ada long etl"),
    ("-state:success", "bad low"),
    ("kind:Mail", "ada bad long"),
    ("kind:Mail,Etl -queue:etl", "ada bad long low"),
    ("-kind:M*", "etl low"),
    ("queue:bulk", "bad"),
    ("key:a_b", "ada"),
    ("key:a?b", ""),
    ("key:a*", "ada"),
    ("subject:ada -state:dead", "ada"),
    ("-subject:ada", "bad long etl low"),
    ('correlation:"order 7"', "low"),
    ("priority:low", "low"),
    ("error:full", "bad"),
    ("mailbox", "bad"),
    ("-error:full", "ada long etl low"),
    ("class:ValueError", "bad"),
    ("payload.to:ada@example.com", "ada"),
    ("payload.to:*@example.*", "ada bad long"),
    ("payload.to:eve*", "long"),
    ("-payload.to:*@example.com", "bad long etl low"),
    ("payload.number:5,7", "bad long"),
    ("payload.number:1152921504606846976", "ada"),
    ("since:1h", "ada bad long etl low"),
    ("until:1h", ""),
    ("kind:Nothing", ""),
)


def test_a_filter_finds(database: Database, ids: dict[str, int]) -> None:
    from urllib.parse import quote

    with console_on(database) as gate:
        shown = {}
        for text, _ in FOUND:
            answer = ask(gate, "GET", f"/tasks.json?q={quote(text)}")
            shown[text] = [task["id"] for task in answer.json["tasks"]] if answer.status == 200 else answer.text
            assert ask(gate, "GET", f"/tasks?q={quote(text)}").status == 200, text
    assert shown == {text: sorted((ids[name] for name in found.split()), reverse=True) for text, found in FOUND}


def test_pages_follow_one_another_without_gaps(database: Database, ids: dict[str, int]) -> None:
    with console_on(database) as gate:
        seen, cursor = [], ""
        for _ in range(5):
            page = ask(gate, "GET", f"/tasks.json?limit=2{cursor}").json
            seen += [task["id"] for task in page["tasks"]]
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        assert seen == sorted(ids.values(), reverse=True)


def test_no_page_looks_at_more_than_it_may(
    database: Database, ids: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and how to go on."""
    monkeypatch.setattr("scheduler.store.read.search.WINDOW", 2)
    with console_on(database) as gate:
        first = ask(gate, "GET", "/tasks.json?q=kind:Mail").json
        assert (first["tasks"], first["bounded"]) == ([], True)
        assert "there are older ones" in ask(gate, "GET", "/tasks?q=kind:Mail").text
        second = ask(gate, "GET", f"/tasks.json?q=kind:Mail&cursor={first['cursor']}").json
        assert [task["id"] for task in second["tasks"]] == [ids["long"], ids["bad"]]
        rest = ask(gate, "GET", f"/tasks.json?q=kind:Mail&cursor={second['cursor']}").json
        assert [task["id"] for task in rest["tasks"]] == [ids["ada"]]
        assert rest["cursor"] is None
        keyed = ask(gate, "GET", "/tasks.json?q=key:a_b").json  # by an index: all
        assert [task["id"] for task in keyed["tasks"]] == [ids["ada"]]


def test_a_statement_that_takes_too_long_is_ended(
    database: Database, ids: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(tx: Any, *given: Any, **more: Any) -> None:
        if tx.dialect.name == "postgresql":
            tx.run("SELECT pg_sleep(30)")
        else:
            tx.run("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n").scalar()

    monkeypatch.setattr("scheduler.console.pages.tasks.search", slow)
    monkeypatch.setattr("scheduler.console.visit.STATEMENT_SECONDS", 0.1)
    with console_on(database) as gate:
        answer = ask(gate, "GET", "/tasks")
        assert answer.status == 503
        assert "took longer than 0.1 s" in answer.text
        monkeypatch.undo()
        assert ask(gate, "GET", "/tasks").status == 200, "the connection is as it was"


@one_database
def test_a_narrow_page_says_why_too(database: Database, ids: dict[str, int], pages: Any) -> None:
    with served(database) as server:
        page = pages.new(viewport={"width": 390, "height": 844})
        page.goto(link(server))
        page.goto(server.url + "tasks?q=state:scheduled")
        why = page.locator("tbody tr").first.locator(".narrow")
        assert why.is_visible()
        assert why.inner_text()
        assert page.locator("tbody tr").first.locator(".why-cell").is_hidden()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.set_viewport_size({"width": 1280, "height": 800})
        assert why.is_hidden()


@one_database
def test_the_form_says_the_same_as_the_language(database: Database, ids: dict[str, int], page: Any) -> None:
    with served(database) as server:
        page.goto(link(server))
        page.goto(server.url + "tasks?q=priority:medium")
        page.get_by_text("Fields", exact=True).click()
        page.get_by_label("dead", exact=True).check()
        page.get_by_label("Kind", exact=True).fill("Mail")
        page.get_by_label("Not queue").fill("etl")
        page.get_by_role("button", name="Filter").click()
        page.wait_for_url("**states=dead**")
        assert page.locator("#q").input_value() == "state:dead kind:Mail -queue:etl priority:medium"
        assert page.locator("tbody tr").count() == 1


@one_database
def test_a_view_is_saved_shared_and_forgotten(database: Database, ids: dict[str, int]) -> None:
    with console_on(database, "operator") as gate:
        saved = post(gate, "/tasks/views/save", name="Dead mail", q="kind:Mail state:dead", next="/tasks")
        assert saved.status == 303
        assert ">Dead mail</a>" in ask(gate, "GET", "/tasks").text
        assert post(gate, "/tasks/views/save.json", name="x", q="nosuch:field").status == 422
    with console_on(database, lambda scope: _other("viewer")) as gate:
        assert ">Dead mail</a>" not in ask(gate, "GET", "/tasks").text, "it is ada's own"
        assert post(gate, "/tasks/views/save", name="x", q="kind:Mail").status == 403
    with console_on(database, "operator") as gate:
        post(gate, "/tasks/views/save", name="Ours", q="kind:Mail", shared="1")
        post(gate, "/tasks/views/forget", name="Dead mail")
        assert ">Dead mail</a>" not in ask(gate, "GET", "/tasks").text
    with console_on(database, lambda scope: _other("viewer")) as gate:
        assert ">Ours</a>" in ask(gate, "GET", "/tasks").text


def _other(role: str) -> Any:
    from scheduler.console import principal

    return principal("bob", role)


def ended(gate: Gate, path: str) -> Any:
    """The bulk of this page, once it has ended."""
    import time

    deadline = time.monotonic() + 60
    while (found := ask(gate, "GET", f"{path}.json").json)["state"] not in ("done", "stopped"):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def test_all_that_match_are_planned_then_done(database: Database, jobs: Scheduler) -> None:
    for number in range(150):
        jobs.task(Mail, f"bad{number}@example.com").schedule()
    drain(jobs)
    with console_on(database, "operator") as gate:
        plan = post(gate, "/bulks/plan/retry", matching="1", q="kind:Mail state:dead", reason="it has room again")
        path = plan.headers["location"]
        shown = ask(gate, "GET", path).text
        assert "It would retry <b>150</b> of 150 tasks" in shown
        later = jobs.task(Mail, "bad-later@example.com").schedule()
        drain(jobs)
        assert post(gate, f"{path}/retry/start", reason="it has room again").status == 303
        done = ended(gate, path)
        gate.close()
    assert (done["total"], done["done"]) == (150, 150)
    assert jobs.get_task_status(later) == "dead", "it came after the plan"
    entries = jobs.audit(bulk=done["name"], limit=1000)
    assert len([one for one in entries if one.action == "retry"]) == 150
    assert {(one.actor, one.via) for one in entries} == {("ada", "page")}


def test_a_filter_that_only_pages_have(database: Database, ids: dict[str, int], jobs: Scheduler) -> None:
    with console_on(database, "operator") as gate:
        plan = post(gate, "/bulks/plan/cancel", matching="1", q="-kind:Mail")
        path = plan.headers["location"]
        post(gate, f"{path}/cancel/start")
        assert ended(gate, path)["done"] == 1
        assert jobs.get_task_status(ids["low"]) == "cancelled"
        undo = post(gate, f"{path}/cancel/undo").headers["location"]
        assert ended(gate, undo)["done"] == 1
        gate.close()
    assert jobs.get_task_status(ids["low"]) == "scheduled"


def test_what_was_ticked(database: Database, ids: dict[str, int], jobs: Scheduler) -> None:
    with console_on(database, "operator") as gate:
        assert post(gate, "/bulks/plan/retry.json").status == 422
        assert post(gate, "/bulks/plan/retry.json", id="1 OR 1").status == 422
        assert post(gate, "/bulks/plan/purge", id=[ids["bad"]]).status == 403
        path = post(gate, "/bulks/plan/retry", id=[ids["bad"], ids["ada"]]).headers["location"]
        assert post(gate, f"{path}/cancel/start").status == 404, "the verb is the one that was planned"
        shown = ask(gate, "GET", f"{path}.json").json
        assert shown["plan"]["will"] == 1
        post(gate, f"{path}/retry/start")
        assert ended(gate, path)["done"] == 1
        gate.close()


def test_a_purge_of_many_wants_the_number_typed(database: Database, jobs: Scheduler) -> None:
    for number in range(101):
        jobs.task(Mail, f"bad{number}@example.com").schedule()
    drain(jobs)
    with console_on(database, "admin") as gate:
        path = post(gate, "/bulks/plan/purge", matching="1", q="state:dead").headers["location"]
        assert post(gate, f"{path}/purge/start.json").status == 422
        assert post(gate, f"{path}/purge/start.json", number="100").status == 422
        assert post(gate, f"{path}/purge/start.json", number="101").status == 200
        assert ended(gate, path)["done"] == 101
        gate.close()


# The language


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour:red", "there is no field colour"),
        ("state:broken", "there is no state"),
        ("kind:", "has no value"),
        ("payload:5", "there is no field payload|say which field"),
        ("kind.x:5", "there is no field kind.x"),
        ("since:yesterday", "neither how long ago"),
        ("since:2026-01-01T00:00", "neither how long ago"),
        ("since:1h,2h", "neither how long ago"),
        ("priority:urgent", "urgent"),
        ("worker:x", "takes numbers"),
        ('kind:"a', 'a " is missing'),
        ("payload.password:x", "is masked"),
        ("a " * 21, "at most 20 terms"),
        ("x" * 1001, "at most 1000 characters"),
    ],
)
def test_a_mistake_in_a_filter(text: str, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        parse(text, NOW, lambda path: path == "password")


def test_words_are_quoted_and_read_back() -> None:
    for word in ("key:a b", 'key:say "hi"', "key:it's", "-queue:x y"):
        assert words_of(quoted(word)) == [word]
    found = parse("  state:dead   'key:a b' 17", NOW, lambda path: False)
    assert found.text == 'state:dead key:"a b" 17'
    assert [(term.field, term.values) for term in found.terms] == [
        ("state", ("dead",)),
        ("key", ("a b",)),
        ("id", ("17",)),
    ]


def test_the_command_that_lists_the_same() -> None:
    def command(text: str) -> str | None:
        return list_command(parse(text, NOW))

    assert command("state:dead kind:Mail,Etl since:2h") == "schedctl list 'state:dead kind:Mail,Etl since:2h'"
    assert command("-kind:M*") == "schedctl list -- '-kind:M*'"
