"""Secrets of payloads: no command shows one without ``--reveal``, and the audit says who had them shown."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest

from scheduler import Context, PermanentError, Secret, Task, TaskState
from scheduler.model.bulk import ItemResult
from scheduler.store import bulks
from scheduler.store.db.tx import Tx
from support.bench import Bench
from support.commands import EVERY

from .conftest import Ctl

CANARY = "canary-7f3a"
WHO = ("--by", "alice", "--reason", "the customer asks")


class Login(Task):
    user: str
    token: Annotated[str, Secret]
    fail: bool = True

    def run(self, ctx: Context) -> Any:
        ctx.log.info(f"with {self.token}")
        ctx.report_progress(50, f"sent {self.token}")
        if self.fail:
            raise PermanentError(f"refused {self.token}")
        return {"used": self.token}


@pytest.fixture
def with_secrets(ctl: Ctl, live: Bench) -> Ctl:
    """A dead letter, a success and a schedule, each with a secret; kinds are published."""
    live.jobs.register(Login)
    live.drain()
    live.jobs.task(Login("ada", CANARY)).schedule()
    live.jobs.task(Login("bob", CANARY, fail=False)).schedule()
    live.drain()
    live.jobs.task(Login("cron", CANARY)).key("nightly").daily_at(3, 0).schedule()
    return ctl


def test_no_command_shows_a_secret(with_secrets: Ctl) -> None:
    for line in ("show 2", "logs 2", *EVERY):
        for form in ("table", "json"):
            result = with_secrets("-o", form, *line.split())
            assert CANARY not in result.output, (line, form, result.output)
    assert with_secrets.json("show", 1)["payload"] == {"user": "ada", "token": "***", "fail": True}
    assert with_secrets.json("show", 2)["result"] == {"used": "***"}
    assert "with ***" in with_secrets.json("logs", 2)[0]["text"]


def test_a_bulk_says_without_the_secret_why_a_task_failed(with_secrets: Ctl, live: Bench) -> None:
    def work(tx: Tx) -> str:
        name = bulks.insert(tx, "replay", [1, 4711])
        notes = f"refused {CANARY} of https://ada:pw-1@localhost", "is not there any more"
        failed = [(place, TaskState.DEAD.code, ItemResult.FAILED, note) for place, note in enumerate(notes)]
        return bulks.write(tx, bulks.get(tx, name), failed, 0).name

    name = live.jobs.database.change(work)
    notes = [row["note"] for row in with_secrets.json("bulk", "show", name)]
    assert notes == ["refused *** of https://ada:***@localhost", "is not there any more"]


def test_reveal_shows_it_and_is_in_the_audit(with_secrets: Ctl, live: Bench) -> None:
    shown = with_secrets.json("show", 1, "--reveal", *WHO)
    assert shown["payload"]["token"] == CANARY
    assert CANARY in shown["error"]
    assert shown["audit"][-1]["action"] == "reveal"
    assert CANARY in with_secrets("logs", 2, "--reveal").stdout
    assert {row["payload"]["token"] for row in with_secrets.json("list", "--reveal")} == {CANARY}
    assert with_secrets.json("dlq", "show", 1, "--reveal")["payload"]["token"] == CANARY
    first, *_ = reversed(with_secrets.json("audit", "--action", "reveal"))
    assert (first["actor"], first["reason"], first["about"]) == ("alice", "the customer asks", "task 1")
    assert [e["task_id"] for e in with_secrets.json("audit", "--action", "reveal")] == [1, 1, 2, 2, 1]
    plain = int(live.step("x").after(60).schedule())
    with_secrets("show", plain, "--reveal")
    assert with_secrets.json("audit", plain) == []  # there was nothing to reveal


def test_programs_see_it_and_reveal_it_for_people(with_secrets: Ctl, live: Bench) -> None:
    jobs = live.jobs
    assert json.loads(jobs.get_task(1).payload or "")["token"] == CANARY
    assert jobs.masked(1) == {"user": "ada", "token": "***", "fail": True}
    with jobs.acting("alice", via="page"):
        assert jobs.reveal(1)["token"] == CANARY
    (entry,) = jobs.audit(1, action="reveal")
    assert (entry.actor, entry.via) == ("alice", "page")


def test_a_payload_that_does_not_fit_is_refused_without_its_secret(with_secrets: Ctl) -> None:
    error = with_secrets.fails(2, "submit", "Login", "-P", "user=x", "-P", f'token:=["{CANARY}"]')
    assert "token" in error
    assert CANARY not in error


def test_the_audit_of_schedules_has_no_secret(with_secrets: Ctl, live: Bench) -> None:
    live.jobs.task(Login("cron", f"{CANARY}-2")).key("nightly").daily_at(4, 0).schedule()
    with_secrets("cron", "delete", "nightly")
    for entry in live.jobs.audit(subject="schedule"):
        assert CANARY not in str(entry)
        assert "not recorded" in str(entry)
