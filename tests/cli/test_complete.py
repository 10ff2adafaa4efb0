"""What a shell completes, filters of list, and graphs that fold what is alike."""

from __future__ import annotations

import os
import subprocess

import pytest

from support.bench import Bench

from .conftest import PROGRAM, Ctl


def completed(ctl: Ctl, line: str, shell: str = "bash") -> list[str]:
    """What is offered for the last word of the line; "" for a new one."""
    asked = {"_SCHEDCTL_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = ctl(**asked)
    assert done.stderr == ""
    return [item.removeprefix("plain,") for item in done.stdout.split()]


def test_a_shell_asks_the_program_itself(ctl: Ctl, live: Bench) -> None:
    live.step("a").queue("mail").schedule()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SCHEDD_")} | ctl.environment
    asked = {"_SCHEDCTL_COMPLETE": "bash_complete", "COMP_WORDS": "schedctl list --queue m", "COMP_CWORD": "3"}
    done = subprocess.run(PROGRAM, env=environment | asked, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("plain,mail\n", "")


def test_names_and_ids(ctl: Ctl, live: Bench) -> None:
    first = int(live.step("a").schedule())
    live.step("b").queue("mail").schedule()
    live.step("n").key("nightly").daily_at(2, 0).schedule()
    live.drain()
    live.step("c").queue("mail").schedule()
    assert completed(ctl, "schedctl list --kind S") == ["Soft", "Step"]
    assert completed(ctl, "schedctl list --kind Step,so") == ["Step,Soft"]
    assert completed(ctl, "schedctl submit st") == ["Step"]
    assert completed(ctl, "schedctl list --queue ") == ["default", "mail"]
    assert completed(ctl, "schedctl cron pause n") == ["nightly"]
    assert completed(ctl, "schedctl list --status fail") == ["failed", "Failed"]
    assert completed(ctl, "schedctl list --columns id,sta") == ["id,state", "id,started_at", "id,status_code"]
    assert str(first) in completed(ctl, "schedctl show ")


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_nothing_is_offered_where_nothing_can_be_read(empty_ctl: Ctl) -> None:
    empty_ctl.environment["SCHEDD_STORE__URL"] = "sqlite:////nonexistent/x.db"
    assert completed(empty_ctl, "schedctl show ") == []
    empty_ctl.environment["SCHEDD_STORE__URL"] = "nonsense"
    assert completed(empty_ctl, "schedctl list --kind ") == []


def test_ids_by_their_first_digits(live: Bench) -> None:
    from scheduler.store.read.names import ids_from

    ids = [int(live.step(f"s{n}").schedule()) for n in range(25)]
    with live.jobs.database.read() as tx:
        assert [one[0] for one in ids_from(tx, "", 3)] == ids[:-4:-1]
        assert [one[0] for one in ids_from(tx, "2", 50)] == [i for i in reversed(ids) if str(i)[0] == "2"]
        assert ids_from(tx, "x", 5) == ids_from(tx, "0", 5) == ids_from(tx, "9" * 30, 5) == []


def test_more_filters_of_list(ctl: Ctl, live: Bench) -> None:
    from support.bench import Soft

    first = int(live.step("a").schedule())
    soft = int(live.jobs.task(Soft("b")).queue("mail").schedule())
    other = int(live.step("a").queue("bulk").schedule())

    def ids(*options: object) -> list[int]:
        return [row["id"] for row in ctl.json("list", *options)]

    assert ids("--kind", "Step,Soft") == [other, soft, first]
    assert ids("--kind", "Soft") == [soft]
    assert ids("--queue", "mail,bulk") == [other, soft]
    assert ids("--field", "name=a") == [other, first]
    assert ids("--field", 'name:="b"') == [soft]
    assert ids("--field", "name=a", "--limit", 1) == [other]
    stopped = ctl("list", "--field", "name=a", "--limit", 1)
    assert f"stopped at 1, there are more: --cursor {other} shows" in stopped.stderr
    assert ids("--field", "name=a", "--limit", 1, "--cursor", other) == [first]
    live.execute(f"UPDATE schedd_tasks SET created_at = created_at - 7200000000 WHERE id = {first}")
    assert ids("--until", "1h") == [first]
    assert ids("--since", "1h", "--kind", "Step") == [other]
    live.execute(f"UPDATE schedd_tasks SET worker = 7, state = 5 WHERE id = {soft}")
    assert ids("--worker", 7) == [soft]
    assert "is neither NAME=TEXT" in ctl.fails(2, "list", "--field", "name")


def test_a_graph_folds_what_is_alike(ctl: Ctl, live: Bench) -> None:
    with live.jobs.batch() as batch:
        from support.bench import Step

        top = batch.task(Step("top"))
        middle = [batch.task(Step(f"m{n}")).depend_on(top) for n in range(6)]
        batch.task(Step("end")).depend_on(middle)
    ids = [int(i) for i in batch.ids]
    lines = ctl("graph", ids[0]).stdout.splitlines()
    assert lines == [
        f"{ids[0]} Step [scheduled]",
        f"└─ {ids[1]} … {ids[6]}: 6 × Step [waiting]",
        f"   └─ {ids[7]} Step [waiting]",
    ]
    assert len(ctl("graph", ids[0], "--all").stdout.splitlines()) == 13
    assert f"└─ {ids[3]} Step [waiting]" in ctl("graph", ids[3]).stdout, "what was asked for is itself"
    assert len(ctl.json("graph", ids[0])["nodes"]) == 8
    assert ctl("graph", ids[0], "--format", "mermaid").stdout.count("-->") == 2
