"""One outage over many kinds is one cause; the commands of a crontab are one each."""

import json
import os
from typing import Annotated, Any

import pytest

from scheduler import Context, PermanentError, Secret, task
from scheduler.alerts import rules
from scheduler.alerts.machine import Level, Observation
from scheduler.cli.root import root
from scheduler.store.read import alert_facts
from scheduler.store.read.dead_causes import causes
from scheduler.store.read.shared_causes import common_text, shared_causes
from scheduler.store.read.status import status
from scheduler.store.read.tasks import errors_of
from scheduler.testing import engine_of
from support.bench import Bench
from support.consoles import ask, console_on
from support.runner import Runner

pytestmark = pytest.mark.case(102)


def kind(number: int) -> Any:
    @task(kind=f"Call{number}")
    def call(ctx: Context, customer: int) -> None:
        raise ConnectionError(f"api-{number}.example.org:443 answered 503 after {customer * 1.5} s to {customer!r}")

    return call


def test_one_outage_of_many_kinds_is_one_cause(bench: Bench) -> None:
    """With ids, numbers and hosts in the text; the totals are said."""
    for number in range(16):
        one = kind(number)
        bench.jobs.register(one)
        for customer in range(3):
            bench.jobs.task(one, customer).schedule()
    other = [int(bench.step(f"odd {n}").schedule()) for n in range(7)]
    for n, _ in enumerate(other):
        bench.script.bodies[f"odd {n}"] = failing_as(n)
    bench.drain()
    engine_of(bench.jobs).write_rollups()
    with bench.jobs.database.read() as tx:
        found = shared_causes(tx)
        assert len(causes(tx).causes) >= 17
    first = found.causes[0]
    assert (first.number, len(first.kinds)) == (48, 16)
    assert "answered 503" in str(first.error)
    assert found.number == 55
    with bench.jobs.database.read() as tx:
        (problem,) = [one for one in status(tx).stuck if one.name == "failing"]
    assert problem.text.startswith("48 of 48 attempts of 16 kinds (")
    with console_on(bench.database) as gate:
        shown = ask(gate, "GET", "/").text
        dead, data = ask(gate, "GET", "/dead").text, ask(gate, "GET", "/dead.json").json
        of_one = ask(gate, "GET", "/dead.json?kind=Call3").json
        none = ask(gate, "GET", "/dead.json?kind=Step").json
    assert "16 kinds (" in shown
    assert "<b>48</b> of 16 kinds (" in dead
    assert [(one["number"], len(one["kinds"])) for one in data["shared"]] == [(48, 16)]
    assert [one["number"] for one in of_one["shared"]] == [48]
    assert none["shared"] == []
    environment = {"SCHEDD_CONFIG": os.devnull, "SCHEDD_STORE__URL": bench.database.url, "NO_COLOR": "1"}
    schedctl = Runner(env=environment)
    assert schedctl.invoke(root, ["dlq", "list"]).stdout.startswith("48 of 16 kinds (")
    listed = json.loads(schedctl.invoke(root, ["-o", "json", "dlq", "list", "--limit", "20"]).stdout)
    rows = {row["kind"]: (row["count"], row["shared_count"], row["shared_kinds"]) for row in listed}
    assert rows["Call3"] == (3, 48, 16)
    assert rows["Step"] == (7, 7, 1)


def test_one_outage_is_one_alert(bench: Bench) -> None:
    """A kind that fires alone already neither ends nor begins anew for it."""
    kinds = [kind(number) for number in range(4)]
    for one in kinds:
        bench.jobs.register(one)
    bench.jobs.task(kinds[0], 1).schedule()
    bench.drain()
    (first,) = observed(bench)
    assert (first.key.kind, first.level, first.number) == ("Call0", Level.FIRES, 1)
    for one in kinds:
        bench.jobs.task(one, 2).schedule()
    bench.drain()
    own, shared = observed(bench)[:-1], observed(bench)[-1]
    assert [one.level for one in own] == [Level.BETWEEN] * 4
    assert first.key in [one.key for one in own]
    assert (shared.level, shared.number, shared.key.kind) == (Level.FIRES, 5, "")
    assert shared.text.startswith("5 dead letters of 4 kinds (Call0, Call1, Call2, others): ConnectionError: ")
    assert len(shared.detail["tasks"]) == 4
    bench.jobs.task(kinds[3], 3).schedule()
    bench.drain()
    assert observed(bench)[-1].key == shared.key


def observed(bench: Bench) -> list[Observation]:
    with bench.jobs.database.read() as tx:
        found = alert_facts.dead_letters(tx)
        errors = errors_of(tx, [group.id for group in found.groups])
        return rules.dead_letters(found.groups, errors)


def failing_as(number: int) -> Any:
    class Odd(Exception): ...

    Odd.__name__ = f"Odd{number}"

    def body(ctx: Context) -> None:
        raise PermanentError(f"reason {'abcdefg'[number]}")

    return body


def test_a_secret_of_a_kind_is_in_no_cause(bench: Bench) -> None:
    @task(kind="Login")
    def login(ctx: Context, password: Annotated[str, Secret]) -> None:
        raise PermanentError("refused: hunter2")

    bench.jobs.register(login)
    bench.jobs.task(login, "hunter2").schedule()
    bench.drain()
    with bench.jobs.database.read() as tx:
        assert "hunter2" not in str(shared_causes(tx))


@pytest.mark.case(102, pure=True)
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("E: no row 17 in table t", "E: no row 234234 in table t", True),
        ("E: a.example.org answered 503", "E: b-7.example.net:8443 answered 503", True),
        ("E: a.example.org answered 503", "E: a.example.org answered 404", False),
        ("E: 10.0.0.1:80 refused", "E: 192.168.7.9 refused", True),
        ("E: no file 'a b'", 'E: no file "c"', True),
        ("E: task 5f0c9a7e1d2b of 7", "E: task 77ab12cd99fe of 8", True),
        ("E: 6ba7b810-9dad-11d1-80b4-00c04fd430c8 is gone", "E: 7ba7b810-9dad-11d1-80b4-00c04fd430c8 is gone", True),
        ("E: GET https://a.org/x?y=1 failed", "E: GET http://b.org/ failed", True),
        ("E: no mail to ada@example.org", "E: no mail to bob@mail.example.org", True),
        ("E: took 3.5 s", "E: took -12 s", True),
        ("E: one", "E: two", False),
        ("CommandFailed: '/bin/x' ended with exit code 1", "CommandFailed: '/bin/y' ended with exit code 2", False),
        ("E: utf8 is not sha256", "E: utf8 is not sha256", True),
    ],
)
def test_what_varies_in_a_text(one: str, other: str, same: bool) -> None:
    assert (common_text("E", one) == common_text("E", other)) is same, (common_text("E", one), common_text("E", other))
