"""What one door hides of a task, all hide: commands, pages and Python show the same."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from msgspec import field

from scheduler import Context, PermanentError, Secret, Task
from support.bench import Bench
from support.consoles import ask, console_on

from .conftest import Ctl

CANARY = "canary-7f3a"


class Login(Task, kind="mask.Login"):
    user: str
    pin: Annotated[str, Secret] = f"default-{CANARY}"
    password: str = ""
    url: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    def run(self, ctx: Context) -> Any:
        ctx.log.info(f"with {self.password} at {self.url}")
        raise PermanentError(f"refused {self.password} at {self.url}")


class Plain(Task, kind="mask.Plain"):
    password: str
    url: str = ""

    def run(self, ctx: Context) -> Any:
        raise PermanentError(f"refused {self.password}")


def dead(live: Bench, number: str = "1") -> list[int]:
    for kind in (Login, Plain):
        if live.jobs.registry.get(kind.__task_options__.kind) is None:
            live.jobs.register(kind)
    secret, url = f"{CANARY}-{number}", f"https://ada:{CANARY}-url{number}@example.org/x"
    made = [
        int(live.jobs.task(Login("ada", f"{CANARY}-pin{number}", secret, url, {"api_key": secret})).schedule()),
        int(live.jobs.task(Plain(secret, url)).headers({"authorization": f"Bearer {secret}"}).schedule()),
    ]
    live.drain()
    assert live.states(*made) == ["dead", "dead"]
    return made


def of_commands(ctl: Ctl, task_id: int) -> dict[str, Any]:
    listed = {row["id"]: row for row in ctl.json("list", "--columns", "id,payload,error")}
    letters = {row["id"]: row for row in ctl.json("dlq", "list", "--each")}
    assert letters[task_id]["id"] == task_id
    return {
        "list": listed[task_id]["payload"],
        "show": ctl.json("show", task_id)["payload"],
        "dlq show": ctl.json("dlq", "show", task_id)["payload"],
    }


def test_all_doors_show_the_same_payload(ctl: Ctl, live: Bench) -> None:
    expected = [
        {
            "user": "ada",
            "pin": "***",
            "password": "***",
            "url": "https://ada:***@example.org/x",
            "more": {"api_key": "***"},
        },
        {"password": "***", "url": "https://ada:***@example.org/x"},
    ]
    for task_id, payload in zip(dead(live), expected, strict=True):
        doors = of_commands(ctl, task_id) | {"python": live.jobs.masked(task_id)}
        with console_on(live.database, "operator") as gate:
            doors["page"] = ask(gate, "GET", f"/tasks/{task_id}.json").json["payload"]
            rows = {row["id"]: row for row in ask(gate, "GET", "/tasks.json").json["tasks"]}
            doors["page of tasks"] = rows[task_id].get("payload", payload)
        assert {name: shown for name, shown in doors.items() if shown != payload} == {}


COMMANDS = (
    ("list",),
    ("show", "{id}"),
    ("why", "{id}"),
    ("logs", "{id}"),
    ("dlq", "list"),
    ("dlq", "list", "--each"),
    ("dlq", "show", "{id}"),
    ("compare", "{id}", "{other}"),
    ("audit",),
    ("wait", "{id}"),
)
PAGES = (
    "/tasks",
    "/tasks/{id}",
    "/tasks/{id}/log",
    "/dead",
    "/kinds/mask.Login",
    "/kinds/mask.Plain",
    "/compare/{id}?with={other}",
)


def test_no_door_shows_a_secret(ctl: Ctl, live: Bench) -> None:
    first, second = dead(live), dead(live, "2")
    for task_id, other in zip(first, second, strict=True):
        for command in COMMANDS:
            given = [part.format(id=task_id, other=other) for part in command]
            for output in ("table", "json"):
                result = ctl("-o", output, *given)
                assert CANARY not in result.output, given
        with console_on(live.database, "operator") as gate:
            for page in PAGES:
                path = page.format(id=task_id, other=other)
                where, _, query = path.partition("?")
                for asked in (path, f"{where}.json{'?' if query else ''}{query}"):
                    assert CANARY not in ask(gate, "GET", asked).text, asked


def test_two_hidden_values_that_differ_are_said_to_differ(ctl: Ctl, live: Bench) -> None:
    (one, plain), (other, other_plain) = dead(live), dead(live, "2")
    found = {change["path"]: change for change in ctl.json("compare", one, other)["payload"]}
    assert set(found) == {"pin", "password", "url", "more.api_key"}
    assert (found["pin"]["before"], found["pin"]["after"]) == ("***", "*** (another)")
    with console_on(live.database, "operator") as gate:
        page = ask(gate, "GET", f"/compare/{plain}.json?with={other_plain}").json["payload"]
    assert {change["path"] for change in page} == {"password", "url"}
    assert ctl.json("compare", one, one)["payload"] == []


@pytest.mark.parametrize("kind", ["mask.Login"])
def test_defaults_of_secret_fields_are_hidden(live: Bench, kind: str) -> None:
    dead(live)
    with console_on(live.database, "operator") as gate:
        schema = ask(gate, "GET", f"/kinds/{kind}.json").json["schema"]
    text = json.dumps(schema)
    assert CANARY not in text
    assert '"default": "***"' in text
