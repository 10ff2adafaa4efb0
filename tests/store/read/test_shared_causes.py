"""One outage over many kinds is one cause; the commands of a crontab are one each."""

from typing import Annotated, Any

import pytest

from scheduler import Context, PermanentError, Secret, task
from scheduler.model.causes import common_text
from scheduler.store.read.dead_causes import causes
from scheduler.store.read.shared_causes import shared_causes
from scheduler.store.read.status import status
from scheduler.testing import engine_of
from support.bench import Bench
from support.consoles import ask, console_on

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
    assert "16 kinds (" in shown


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
