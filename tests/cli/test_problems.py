"""Each problem of the table, planted in a real store: every voice that the table gives it names it, with a remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from scheduler import Context, Task, Unique
from scheduler.alerts.evaluator import Evaluator
from scheduler.alerts.observer import Retained
from scheduler.cli.root import root
from scheduler.config.alerts import AlertRules, Alerts, AlertSink, PresentRule
from scheduler.model.alerts import AlertPhase
from scheduler.model.problem import Problem
from scheduler.operations.status import next_command
from scheduler.ports import SECOND
from scheduler.store import alerts as alert_rows
from scheduler.store import inbox
from scheduler.store.db import sqlite_files, writable
from scheduler.store.inbox_order import Ordering
from scheduler.store.read.problems import BY_NAME, TABLE, Voice
from scheduler.testing import engine_of
from support.bench import Bench, Soft, Step, notify_and_step
from support.consoles import ask, console_on
from support.databases import Database

from .conftest import Ctl

HOUR = 3600 * SECOND


class Planted(NamedTuple):
    """``words``: each voice says them; ``tasks``: those whose ``why`` is asked, and ``why`` a word of it.

    ``mends``: does what the remedy says, where that is a command that ends the problem at once.
    """

    words: str
    tasks: tuple[int, ...] = ()
    why: str = ""
    mends: tuple[str, ...] = ()


def held(live: Bench, name: str = "held") -> int:
    """A task that a live worker has claimed."""
    made = int(live.step(name).schedule())
    notify_and_step(live.jobs)
    return made


def plant_idle(live: Bench) -> Planted:
    made = int(live.step("x").schedule())
    return Planted("no worker is live", (made,), "no worker is live")


def plant_unserved(live: Bench) -> Planted:
    live.drain()
    made = int(live.step("mail").queue("mail").schedule())
    live.execute("UPDATE schedd_workers SET queues = '[\"default\"]'")
    return Planted("no live worker serves queue 'mail'", (made,), "no live worker serves queue 'mail'")


class Again(Task, unique=Unique(by=("n",))):
    """Makes itself, once more under the same key, and awaits it."""

    n: int

    def run(self, ctx: Context) -> Any:
        return ctx.map(Again, [{"n": self.n}])


def plant_ring(live: Bench) -> Planted:
    live.jobs.register(Again)
    made = int(live.jobs.task(Again(1)).schedule())
    live.drain()
    assert live.state(made) == "suspended"
    return Planted("waits for itself", (made,), "waits for itself", ("cancel", str(made)))


def plant_hung(live: Bench) -> Planted:
    made = held(live)
    pools = f'{{"medium":[8,0],"processes":2,"hung":[[{made},1,"Step",1,0,1000000,false,[]]]}}'
    live.execute("UPDATE schedd_workers SET pools = :pools", pools=pools)
    live.execute(f"UPDATE schedd_tasks SET state = 5, started_at = 1000000, timeout = NULL WHERE id = {made}")
    return Planted("hangs on worker", (made,), "its handler hangs", ("cancel", "--force", str(made)))


def plant_unmoved(live: Bench) -> Planted:
    made = held(live)
    pools = f'{{"medium":[8,0],"processes":2,"unmoved":[[{made},1,"Step",1000000,"/app/steps.py:7 run"]]}}'
    live.execute("UPDATE schedd_workers SET pools = :pools", pools=pools)
    live.execute(f"UPDATE schedd_tasks SET state = 5, started_at = 1000000, timeout = NULL WHERE id = {made}")
    words = "not moved since 1970-01-01T00:00:01Z, at /app/steps.py:7 run"
    return Planted(words, (made,), "at /app/steps.py:7 run; if it hangs", ("cancel", "--force", str(made)))


def plant_lease(live: Bench) -> Planted:
    made = held(live)
    live.execute("UPDATE schedd_workers SET lease_until = 1000000")
    return Planted("lost its lease", (made,), "lost its lease")


def plant_short_lease(live: Bench) -> Planted:
    live.drain()
    live.execute("UPDATE schedd_workers SET pools = :pools", pools='{"medium":[8,0],"lease_needed":45.0}')
    return Planted("set [worker] lease to 45 s")


def plant_cycles(live: Bench) -> Planted:
    live.drain()
    live.execute("UPDATE schedd_workers SET pools = :pools", pools='{"medium":[8,0],"failing":"the disk is full"}')
    return Planted("neither claims nor records what has ended: the disk is full")


def plant_orphans(live: Bench) -> Planted:
    live.drain()
    live.execute('UPDATE schedd_workers SET pools = \'{"medium":[8,0],"orphans":[[1,0,2,[5,7],true]]}\'')
    return Planted("attempts that lost their claims")


def plant_capped(live: Bench) -> Planted:
    """A cap of one, held for an hour."""
    live.jobs.live_settings.kind("Step", max_concurrency=1)
    holder = held(live)
    waits = int(live.step("waits").schedule())
    live.execute(f"UPDATE schedd_tasks SET state = 5, started_at = claimed_at, timeout = NULL WHERE id = {holder}")
    hour_ago = "run_at = run_at - :hour, created_at = created_at - :hour, started_at = started_at - :hour"
    live.execute(f"UPDATE schedd_tasks SET {hour_ago}", hour=HOUR)
    words = f"kind Step is at its cap of 1: task {holder} holds it since "
    return Planted(words, (waits,), f"its cap of 1: task {holder} holds it since ", ("cancel", "--force", str(holder)))


def plant_failing(live: Bench) -> Planted:
    """An outage: each attempt fails, of two kinds, with other numbers and hosts in the text."""

    def away(ctx: Context) -> Any:
        raise ConnectionError(f"api-{ctx.id}.example.org answered 503 after {ctx.id} ms to '{ctx.id}'")

    live.script.bodies |= {f"out {n}": away for n in range(24)}
    made = [int(live.jobs.task((Step, Soft)[n % 2](f"out {n}")).schedule()) for n in range(24)]
    live.drain()
    engine_of(live.jobs).write_rollups()
    return Planted("24 of 24 attempts of 2 kinds (", (made[0],), "answered 503", ("pause", "--kind", "Step"))


def plant_overdue(live: Bench) -> Planted:
    made = held(live)
    live.execute(f"UPDATE schedd_tasks SET state = 5, timeout = 1000000, started_at = 1000000 WHERE id = {made}")
    return Planted("running past the timeout", (made,), "overdue", ("cancel", "--force", str(made)))


def plant_stalled(live: Bench) -> Planted:
    made = held(live)
    live.execute("UPDATE schedd_kinds SET options = :options WHERE name = 'Step'", options='{"stall_after":1000000}')
    times = "timeout = NULL, started_at = :at, last_heartbeat_at = :at"
    live.execute(f"UPDATE schedd_tasks SET state = 5, {times} WHERE id = {made}", at=live.clock.now() - HOUR)
    return Planted("running without a heartbeat", (made,), "without a heartbeat", ("cancel", "--force", str(made)))


def plant_schedule(live: Bench) -> Planted:
    live.step("x").key("nightly").cron("0 5 * * *").schedule()
    live.drain()
    live.execute("UPDATE schedd_schedules SET next_at = :at", at=live.clock.now() - HOUR)
    return Planted("nightly", mends=("cron", "trigger", "nightly"))


def plant_zone(live: Bench) -> Planted:
    live.step("x").key("nightly").cron("0 5 * * *", tz="Europe/Berlin").schedule()
    live.drain()
    live.execute("UPDATE schedd_schedules SET next_at = next_at + :hour", hour=HOUR)
    return Planted("nightly")


def plant_parent(live: Bench) -> Planted:
    dead = live.ended("dead")
    child = int(live.step("child", dead, otherwise="wait").schedule())
    return Planted("stuck until a parent is retried", (child,), "until it is retried", ("retry", str(dead)))


def plant_success(live: Bench) -> Planted:
    done = live.ended("success")
    child = int(live.step("child", done, when="failure", otherwise="wait").schedule())
    return Planted("can never run", (child,), "cancel this one", ("cancel", str(child)))


def plant_source(live: Bench) -> Planted:
    live.drain()
    live.execute(
        "UPDATE schedd_workers SET pools = :pools",
        pools='{"medium":[8,0],"troubles":[["source","orders",1000000,"refused"]]}',
    )
    return Planted("source orders cannot be used since 1970-01-01T00:00:01Z")


def plant_sink(live: Bench) -> Planted:
    live.drain()
    live.execute(
        "UPDATE schedd_workers SET pools = :pools",
        pools='{"medium":[8,0],"troubles":[["sink","shop",1000000,"refused"]]}',
    )
    return Planted("sink shop cannot be used since 1970-01-01T00:00:01Z")


class Tells(Task, on_success="sinks.shpo"):
    def run(self, ctx: Context) -> Any:
        return None


def plant_no_sink(live: Bench) -> Planted:
    live.jobs.register(Tells)
    live.drain()
    return Planted("no worker has [sinks.shpo], which on_success of Tells names")


def plant_old_messages(live: Bench) -> Planted:
    live.drain()
    live.execute(
        "UPDATE schedd_workers SET pools = :pools",
        pools=f'{{"medium":[8,0],"troubles":[["source","orders",{live.clock.now() - HOUR},"",true,86400000000]]}}',
    )
    return Planted("messages of source orders come")


def plant_held(live: Bench) -> Planted:
    live.drain()
    kind = live.jobs.submitter.registry.get("Step")
    assert kind is not None
    third = inbox.Arrival("k", "m", kind.spec(Step("third")), subject="s", sequence=3)
    rules = inbox.InboxRules(30 * HOUR, ordering=Ordering("wait"))
    live.jobs.database.change(lambda tx: inbox.store(tx, "orders", [third], rules))
    live.execute("UPDATE schedd_inbox SET first_at = 1000000")
    return Planted("held for", mends=("inbox", "release", "orders"))


def plant_ahead(live: Bench) -> Planted:
    made = int(live.step("later").schedule())
    live.execute(
        f"UPDATE schedd_tasks SET run_at = :at, created_at = :at WHERE id = {made}", at=live.clock.now() + HOUR
    )
    live.drain()
    return Planted("due far ahead", (made,), "a clock was ahead")


def plant_clock(live: Bench) -> Planted:
    live.drain()
    live.execute("UPDATE schedd_workers SET skew = -3600000000")
    return Planted("is ahead by 1 h")


def plant_unserved_schedule(live: Bench) -> Planted:
    live.step("x").queue("mail").key("nightly").cron("0 5 * * *").schedule()
    live.drain()
    live.execute("UPDATE schedd_workers SET queues = '[\"default\"]'")
    return Planted("no live worker serves queue 'mail'", mends=("cron", "pause", "nightly"))


def plant_broken(live: Bench) -> Planted:
    made = int(live.step("x").schedule())
    live.drain()
    live.execute(f"UPDATE schedd_tasks SET state = 99 WHERE id = {made}")
    return Planted("state 99 is unknown", (made,), "state 99 is unknown")


def plant_writes(live: Bench) -> Planted:
    live.drain()
    made = int(live.step("x").schedule())
    postgresql = live.database.dialect == "postgresql"
    return Planted("takes no writes" if postgresql else "is full", (made,), "takes no writes" if postgresql else "full")


PLANTS: dict[str, Callable[[Bench], Planted]] = {
    name.removeprefix("plant_"): function for name, function in globals().items() if name.startswith("plant_")
}
PLANTS["short lease"] = PLANTS.pop("short_lease")


def test_each_problem_of_the_table_is_planted_here() -> None:
    assert sorted(PLANTS) == sorted(BY_NAME)
    assert len(BY_NAME) == len(TABLE)


@pytest.fixture
def planted(name: str, live: Bench, monkeypatch: pytest.MonkeyPatch) -> Planted:
    made = PLANTS[name](live)
    if name == "writes":
        monkeypatch.setattr(sqlite_files, "_FULL", 1 << 62)
        monkeypatch.setattr(writable, "_SERVER", "SELECT false AS standby, true AS read_only")
    return made


def of_status(ctl: Ctl, name: str) -> dict[str, Any]:
    """What ``status --check`` says of it, which must be one thing."""
    view = json.loads(ctl("-o", "json", "status", "--check").stdout)
    (one,) = [one for one in [view["idle"], *view["stuck"]] if one and one["problem"] == name]
    return dict(one)


def remedies(texts: Iterable[str]) -> list[str]:
    """The commands of schedctl in these texts."""
    return [command for text in texts for command in re.findall(r"`schedctl ([^`]+)`", text)]


def check_command(line: str) -> None:
    """There is such a command, with these options and so many arguments."""
    words = [re.sub(r"^(ID|NAME)$", "1", word) for word in line.split()]
    command: click.Command = root
    context = click.Context(root, info_name="schedctl", **root.context_settings)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {line!r}"
        command = found
    command.make_context(command.name, words, parent=context, resilient_parsing=False)


@pytest.mark.case(102)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.both_databases) if name == "writes" else name for name in sorted(PLANTS)],
)
class TestVoices:
    def test_each_tells(self, name: str, ctl: Ctl, database: Database, live: Bench, planted: Planted) -> None:
        self.status_and_why(name, ctl, planted)
        self.doctor(name, ctl, planted)
        self.page(name, database, planted)
        self.alert(name, live, planted)

    def status_and_why(self, name: str, ctl: Ctl, planted: Planted) -> None:
        result = ctl("status", "--check")
        assert result.exit_code == 1
        assert planted.words in result.output
        one = of_status(ctl, name)
        assert planted.words in one["text"]
        assert one["remedy"]
        for line in remedies([one["text"], one["remedy"]]):
            check_command(line)
        if Voice.WHY in BY_NAME[name].voices:
            assert planted.tasks, "a problem of tasks"
            for task in planted.tasks:
                assert planted.why in ctl("why", task).output
        else:
            assert not one["tasks"] or name == "orphans"

    def doctor(self, name: str, ctl: Ctl, planted: Planted) -> None:
        if Voice.DOCTOR not in BY_NAME[name].voices:
            return
        found = json.loads(ctl("-o", "json", "doctor").stdout)
        said = [one for one in found if one["check"] == BY_NAME[name].check and one["level"] != "ok"]
        assert said, f"doctor has no finding {BY_NAME[name].check}"
        assert planted.words in said[0]["text"] or any(str(task) in said[0]["text"] for task in planted.tasks)

    def alert(self, name: str, live: Bench, planted: Planted) -> None:
        row = BY_NAME[name]
        if Voice.ALERT not in row.voices:
            return
        assert getattr(AlertRules(), row.rule).after <= 60
        at_once = AlertRules(**{row.rule: PresentRule(after=0)})
        sinks = {"ops": AlertSink(type="command", command=("x",))}
        alerts = Alerts(sinks=sinks, rules=at_once)
        Evaluator(live.jobs.database, alerts, Retained(30 * HOUR, 90 * HOUR), "one").look()
        with live.jobs.database.read() as tx:
            firing = [one for one in alert_rows.alerts(tx).values() if one.phase is AlertPhase.FIRING]
        assert any(one.key.rule == row.rule and planted.words in one.text for one in firing), firing

    def page(self, name: str, database: Database, planted: Planted) -> None:
        with console_on(database) as gate:
            wrong = ask(gate, "GET", "/.json").json["wrong"]
            (one,) = [one for one in wrong if one["problem"] == name]
            assert name == "writes" or "writes" not in {one["problem"] for one in wrong}
            shown = ask(gate, "GET", "/").text
        assert planted.words in one["text"]
        assert one["remedy"]
        assert 'class="allwell"' not in shown
        for line in remedies([one["text"], one["remedy"]]):
            check_command(line)

    def test_the_remedy_works(self, name: str, ctl: Ctl, live: Bench, planted: Planted) -> None:
        if not planted.mends:
            return
        one = of_status(ctl, name)
        said = " ".join(remedies([one["text"], one["remedy"]]))
        assert planted.mends[0] in said, f"{said!r} has no {planted.mends}"
        result = ctl(*planted.mends)
        assert result.exit_code == 0, result.output


def test_a_cap_that_moves_is_no_problem(ctl: Ctl, live: Bench, database: Database) -> None:
    """The oldest task's cause is said, and no more slots are asked for; status 0."""
    live.jobs.live_settings.kind("Step", max_concurrency=1)
    holder = held(live)
    waits = int(live.step("waits").schedule())
    live.execute(f"UPDATE schedd_tasks SET run_at = run_at - :hour WHERE id = {waits}", hour=HOUR)
    result = ctl("status", "--check")
    assert result.exit_code == 0, result.output
    assert f"its kind is at its cap of 1: task {holder} holds it" in result.stdout
    with console_on(database) as gate:
        (one,) = ask(gate, "GET", "/.json").json["wrong"]
    assert one["problem"] == "backlog"
    assert f"its kind is at its cap of 1: task {holder} holds it" in one["text"]
    assert "slots" not in one["remedy"]


def test_a_zone_that_this_machine_does_not_know_is_named(ctl: Ctl, live: Bench) -> None:
    live.step("x").key("nightly").cron("0 5 * * *", tz="Europe/Berlin").schedule()
    live.drain()
    assert ctl("status", "--check").exit_code == 0
    live.execute("UPDATE schedd_schedules SET recurrence = replace(recurrence, 'Europe/Berlin', 'Mars/Base')")
    assert (
        "1 schedule in a zone that this machine does not know: nightly (Mars/Base)" in ctl("status", "--check").output
    )


def test_the_button_ends_what_holds_the_cap(ctl: Ctl, live: Bench, database: Database) -> None:
    planted = plant_capped(live)
    holder = planted.mends[-1]
    with console_on(database) as gate:
        assert f'action="/tasks/{holder}/cancel"' in ask(gate, "GET", "/").text
    assert ctl(*planted.mends).exit_code == 0
    live.drain()
    assert [one["problem"] for one in ctl.json("status")["stuck"]] == []


def test_the_report_names_each_cause_and_the_next_command(live: Bench, ctl: Ctl, database: Database) -> None:
    """The same state gives the same report; commands can be given as they stand."""
    live.drain()
    assert ctl("report", "health").stdout == "well\n"
    live.step("later").after(3600).schedule()
    stopped = "UPDATE schedd_workers SET state = {}, heartbeat_at = 1700000000000000"
    live.execute(stopped.format(2))
    told = ctl("report", "health").stdout.splitlines()
    assert told[:2] == ["broken: 1 cause", "1. no worker is live: nothing runs"]
    assert "was seen at 2023-11-14T22:13:20Z" in told[2]
    assert told[3].strip() == "next: schedd"
    live.execute(stopped.format(0))
    live.step("mail").queue("mail").schedule()
    live.execute("UPDATE schedd_workers SET queues = '[\"default\"]'")
    told = ctl("report", "health")
    assert told.exit_code == 1
    first, cause, *_, following = told.stdout.splitlines()
    assert first == "broken: 1 cause"
    assert cause.startswith("1. ")
    assert "no live worker serves queue 'mail'" in cause
    assert following.strip() == f"next: {(remedy := 'schedctl set task --queue mail --to-queue default')}"
    assert ctl("report", "health").stdout == told.stdout
    as_json = json.loads(ctl("report", "health", "--json").stdout)
    assert as_json["verdict"] == "broken"
    assert [one["problem"] for one in as_json["causes"]] == ["unserved"]
    assert as_json["causes"][0]["next"] == remedy
    assert ctl("-o", "json", "report", "health").exit_code == 1
    with console_on(database) as gate:
        page, data = ask(gate, "GET", "/").text, ask(gate, "GET", "/index.json").json
    assert '<h1>Now <span class="muted">broken: 1 cause</span></h1>' in page
    assert remedy in page
    assert (data["verdict"], data["wrong"][0]["problem"], data["wrong"][0]["next"]) == ("broken", "unserved", remedy)


def test_the_report_tells_of_a_store_that_is_not_there(ctl: Ctl, tmp_path: Path) -> None:
    away = ctl("report", "health", "--json", SCHEDD_STORE__URL=f"sqlite:///{tmp_path}/none.db")
    assert away.exit_code == 5
    told = json.loads(away.stdout)
    assert (told["verdict"], told["at"], [one["problem"] for one in told["causes"]]) == (
        "broken",
        None,
        ["unreachable"],
    )
    assert not (tmp_path / "none.db").exists()


def test_each_problem_has_a_next_command_that_is_whole() -> None:
    for row in TABLE:
        for tasks in ((), (7,)):
            words = next_command(Problem(row.name, "something is wrong", 1, tasks, remedy=row.remedy)).split()
            assert words[0] == "schedctl", row.name
            command: click.Command = root
            for word in words[1:]:
                if not isinstance(command, click.Group):
                    break
                found = command.get_command(click.Context(command), word)
                assert found is not None, f"{row.name}: {words}"
                command = found
            assert not isinstance(command, click.Group), f"{row.name}: {words}"
