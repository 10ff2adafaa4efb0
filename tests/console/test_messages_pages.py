"""The pages of sources and sinks: what came, what is held, waits or is dead, and their verbs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler import Context, Scheduler, Task
from scheduler.config.messages import SourceSection
from scheduler.messages.intake import Intake
from scheduler.testing import drain
from scheduler.transports.ports import Delivery, Limits
from support.consoles import ask, console_on, link, post, served
from support.databases import Database, one_database


class TakeOrder(Task):
    order: int

    def run(self, ctx: Context) -> None: ...


def filled(database: Database) -> Scheduler:
    """A source with a message that has run, two that are held, and a dead one; a sink with one that waits."""
    jobs = Scheduler.for_testing(url=database.url)
    jobs.register(TakeOrder)
    section = SourceSection(type="cloudevents", kind="TakeOrder", ordered_by="subject")
    intake = Intake("orders", section, Limits(has_dlq=True), jobs.submitter)
    for number, sequence in ((1, 1), (3, 3), (4, 4)):
        body = {"idempotency_key": f"k{number}", "subject": "s", "sequence": sequence}
        text = json.dumps({**body, "payload_inline": {"order": number}}).encode()
        intake.take([Delivery(message_id=str(number), body=text, receipt="r")])
    intake.take([Delivery(message_id="bad", body=b"[]", receipt="r")])
    jobs.publish("shop", {"n": 1}, key="out", group="g")
    drain(jobs)
    published = (
        "INSERT INTO schedd_kinds (name, schema, options, schema_version, updated_at) VALUES (:name, :no, :no, 1, 0)"
    )
    jobs.database.change(lambda tx: tx.run(published, name="sinks.shop", no="{}"))
    return jobs


@pytest.mark.case(91)
def test_what_is_held_is_seen_and_run_by_its_button(database: Database) -> None:
    jobs = filled(database)
    with console_on(database, "operator") as gate:
        found = json.loads(ask(gate, "GET", "/messages.json").body)
        (source,), (sink,) = found["sources"], found["sinks"]
        assert (source["name"], source["held"], source["dead"], source["paused"]) == ("orders", 2, 1, False)
        assert source["last_error"] == "the message is no JSON object, but list"
        assert (sink["name"], sink["waiting"], sink["dead"]) == ("shop", 1, 0)
        assert sink["trouble"] is None
        rows = json.loads(ask(gate, "GET", "/sources/orders.json?state=held").body)["messages"]
        assert sorted(row["key"] for row in rows) == ["k3", "k4"]
        page = ask(gate, "GET", "/sources/orders").body.decode()
        ran = jobs.list_tasks(kind="TakeOrder")[0].id
        assert f"/tasks/{ran}" in page
        assert "/messages" in ask(gate, "GET", "/").body.decode()
        answer = post(gate, "/sources/orders/release", reason="2 is lost", next="/messages")
        assert answer.status == 303
        assert len(jobs.list_tasks(kind="TakeOrder")) == 3
        assert post(gate, "/pause", source="orders", next="/messages").status == 303
        assert json.loads(ask(gate, "GET", "/messages.json").body)["sources"][0]["paused"] is True
        assert post(gate, "/resume", source="orders", next="/messages").status == 303
        assert json.loads(ask(gate, "GET", "/sinks/shop.json").body)["messages"][0]["key"] == "out"
        for path, status in (("/sources/none", 404), ("/sinks/none", 404), ("/sources/orders?state=x", 422)):
            assert ask(gate, "GET", path).status == status
    actions = [(one.action, one.reason) for one in jobs.audit(subject="source orders")]
    assert actions == [("resume", None), ("pause", None), ("release", "2 is lost")]
    jobs.close()


@one_database
def test_the_pages_fit_a_screen_and_a_phone(database: Database, page: Any) -> None:
    jobs = filled(database)
    with served(database) as server:
        page.goto(link(server))
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            for path in ("messages", "sources/orders", "sinks/shop"):
                page.goto(f"{server.url}{path}")
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, (path, width, wide)
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(f"{server.url}messages")
        row = page.locator('[data-row="source-orders"]')
        row.get_by_text("Run held…").click()
        row.get_by_role("button", name="Run", exact=True).click()
        page.get_by_text("Source orders: 2 held messages let go.").wait_for()
    assert len(jobs.list_tasks(kind="TakeOrder")) == 3
    jobs.close()
