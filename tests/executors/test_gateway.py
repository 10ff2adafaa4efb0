"""Jobs without a database: a daemon's gateway writes and reads for them, for the one claim that a token is good for.

The whole conformance suite with a gateway is in ``make executors``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest

from scheduler import Scheduler, TaskState
from scheduler.daemon.job import take_gateway
from scheduler.engine.gateway.client import GatewayClient
from scheduler.engine.gateway.engine import GatewayEngine
from scheduler.engine.gateway.messages import Attach, Attached, GatewayLoad, GatewayRequest, Sync, Synced
from scheduler.engine.placed import NotMineError, PlacedClaim
from scheduler.errors import ConfigError, StoreUnavailableError
from scheduler.executors.gateway import JobGateway, Reply
from scheduler.executors.gateway_work import JobKey
from scheduler.executors.ports import NOT_MINE
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.placement import GATEWAY_VARIABLE, TOKEN_VARIABLE, job_token
from scheduler.model.state import SUCCESS
from scheduler.store import placements, reaper
from scheduler.store.durable import events
from scheduler.store.read import history
from support.certificates import Certificates
from support.databases import Database
from support.executor_rigs import SECRET, GatewayRig
from support.fleet import write
from support.placing import NAME, Place


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Iterator[Place]:
    made = Place(database.url, tmp_path, GatewayRig().settings(tmp_path) + "max_body = 65536\n")
    yield made
    made.close()


class Held:
    """A job of a task that no process runs: the test speaks for it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.task_id = place.schedule()
        place.engine.drop_requests = 1000
        place.placer.step()
        (placement,) = place.placements(self.task_id)
        self.claim = PlacedClaim(NAME, self.task_id, placement.claim)
        self.key = JobKey(*self.claim)
        self.client = self.with_token(self.token())

    def token(self, **other: Any) -> str:
        identity = self.place.jobs.database.same.identity
        assert identity is not None
        given = {"secret": SECRET, "store": identity.store, **self.claim._asdict(), **other}
        return job_token(given["secret"], given["store"], given["executor"], given["task_id"], given["number"])

    def with_token(self, token: str) -> GatewayClient:
        return GatewayClient(self.place.config.gateway.urls, self.claim, token)

    def attach(self, life: str = "a") -> Attached:
        return self.client.attach(Attach(life, "node", 1, "0"))

    def succeeded(self, attached: Attached) -> Outcome:
        c, now = attached.claimed, attached.now
        return Outcome(c.id, c.claim, c.attempt, AttemptEnd.SUCCEEDED, SUCCESS, c.claimed_at, now, now, "1")


@pytest.fixture
def held(place: Place) -> Iterator[Held]:
    made = Held(place)
    yield made
    made.client.close()


# Jobs


def test_a_job_has_nothing_that_leads_to_the_database(
    place: Place, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results, steps, output and numbers are in the store all the same."""
    monkeypatch.setenv("SCHEDD_STORE__URL", database.url)
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(place.directory))
    place.commands.more = {"PLACED_WATCH": "1"}
    task_id = place.schedule("look")
    place.until(lambda: place.ended(task_id))
    assert place.jobs.result(task_id) == {"first": 1, "attempt": 1}, place.told()
    assert place.outcomes(task_id) == ["succeeded"]
    with place.jobs.database.read() as tx:
        assert "the body has ended" in str(history.attempt_log(tx, task_id))
    assert [row.attempts for row in place.jobs.stats().kinds] == [1]
    found = json.loads(place.lines("look")[0].removeprefix("look "))
    given = " ".join([*found["environ"], *found["own"], *found["argv"]])
    assert database.url not in given
    assert SECRET not in given
    assert "hunter2" not in given
    assert "CREDENTIALS_DIRECTORY" not in given
    assert place.engine.submitted[0].env[TOKEN_VARIABLE] not in given
    assert found["opened"] == [f"socket {place.config.gateway.listen}"]
    assert str(database.url) not in Path(str(place.config.executors[NAME].job_config)).read_text()


def test_copies_of_the_token_are_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has the environment of a job once more, as the JSON of its runtime environment."""
    given = {GATEWAY_VARIABLE: "http://127.0.0.1:1", TOKEN_VARIABLE: "6f70", "OTHER": '{"token": "6f70", "n": 1}'}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    client = take_gateway(PlacedClaim("it", 1, 1))
    assert client is not None
    assert [os.environ.get(name) for name in given] == [None, None, '{"token": "", "n": 1}']


def test_what_a_handler_asks_for_is_written(place: Place) -> None:
    task_id = place.schedule("calls")
    place.until(lambda: place.ended(task_id))
    assert place.state(task_id) is TaskState.SUCCESS, place.told()
    children = [task for task in place.jobs.list_tasks() if task.id != task_id]
    assert len(children) == 1
    assert place.jobs.progress(task_id) == (50.0, "half")
    with place.jobs.database.read() as tx:
        assert [event.name for event in events.records(tx)] == ["made"]


def test_what_a_gateway_cannot_do_fails_the_task_with_the_reason(place: Place) -> None:
    transaction, large = place.schedule("transaction"), place.schedule("large")
    place.until(lambda: place.ended(transaction, large))
    assert place.lines("opened") == []
    said = str(place.jobs.get_last_error(transaction))
    assert "this job has no database" in said
    assert "ctx.transaction()" in said
    assert "more than 65,536 bytes" in str(place.jobs.get_last_error(large))
    assert place.outcomes(transaction) == place.outcomes(large) == ["dead"]


def test_what_is_too_long_together_is_sent_in_parts(place: Place) -> None:
    """Grouped steps send their records without waiting for those before: twelve of them have 144,000 bytes."""
    task_id = place.schedule("grouped")
    place.until(lambda: place.ended(task_id))
    assert place.state(task_id) is TaskState.SUCCESS, place.jobs.get_last_error(task_id)
    with place.jobs.database.read() as tx:
        assert tx.run("SELECT count(*) FROM schedd_checkpoints WHERE task_id = :id", id=task_id).scalar_one() == 13


def test_what_another_transaction_kept_back_goes_before_what_was_asked_since(database: Database) -> None:
    """Else a later step could be recorded without one before it."""
    sent: list[list[str]] = []

    class Client:
        def sync(self, message: Sync) -> Synced:
            sent.append([one.args["name"] for one in message.asked])
            return Synced(True, now=0, answers=[None if len(sent) == 1 else {"held": True} for _ in message.asked])

    jobs = Scheduler(database.url)
    engine: Any = jobs._make_engine(partial(GatewayEngine, client=Client()), inline=True)
    state = engine.engine_state
    state.inline = None  # no thread exchanges for a request
    attempt: Any = SimpleNamespace(last_activity=0.0)
    for name in ("first", "second"):
        state.request(attempt, "record", {"name": name})
    engine._exchange()
    state.request(attempt, "record", {"name": "third"})
    engine._exchange()
    assert sent == [["first", "second"], ["first", "second", "third"]]


def test_every_answer_may_be_lost_once(place: Place) -> None:
    """What was written is not written again: one body, one child, one end."""
    assert place.gateway is not None
    inner, lost = place.gateway._do, set[tuple[str, bytes]]()

    def losing(key: JobKey, what: str, body: bytes) -> Reply:
        done = inner(key, what, body)
        if (what, body) in lost:
            return done
        lost.add((what, body))
        return 503, b"{}", {}

    place.gateway._do = losing  # type: ignore[method-assign]
    task_id = place.schedule("calls")
    place.until(lambda: place.ended(task_id))
    place.until(lambda: not place.handles())
    assert place.outcomes(task_id) == ["succeeded"], place.told()
    assert len(place.lines(f"begin {task_id} ")) == 1
    assert len(place.jobs.list_tasks()) == 2, "one child"
    assert {what for what, _ in lost} == {"look", "attach", "sync", "load"}


def test_a_gateway_may_be_away_for_less_than_a_lease(place: Place) -> None:
    """The body goes on and ends meanwhile; another gateway, or the same one, records it."""
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin") and _has_step(place, task_id))
    assert place.gateway is not None
    place.gateway.stop()
    place.go()
    place.until(lambda: place.lines("end"))
    assert place.state(task_id) is TaskState.RUNNING
    place.open_gateway()
    place.until(lambda: place.ended(task_id))
    assert (place.outcomes(task_id), len(place.lines("begin"))) == (["succeeded"], 1)


def test_a_gateway_may_be_away_for_longer_than_a_lease(place: Place) -> None:
    """The task is another job's then, and the first one changes nothing."""
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin") and _has_step(place, task_id))
    assert place.gateway is not None
    place.gateway.stop()
    worker = place.jobs.get_task(task_id).worker
    assert worker is not None
    place.jobs.database.change(lambda tx: placements.expire(tx, [worker]))
    place.jobs.database.change(lambda tx: reaper.reap(tx))
    place.open_gateway()
    place.until(lambda: len(place.lines("begin")) == 2)
    place.go()
    place.until(lambda: place.ended(task_id) and not place.handles())
    assert place.outcomes(task_id) == ["lost", "succeeded"]
    assert place.jobs.result(task_id) == {"first": 1, "attempt": 2}


def test_a_cancel_reaches_the_handler_and_a_stop_hands_the_task_back(place: Place) -> None:
    cancelled = place.schedule("wait")
    preempted = place.schedule("wait")
    place.until(lambda: len(place.lines("begin")) == 2)
    place.jobs.cancel_task(cancelled)
    place.until(lambda: place.ended(cancelled))
    assert place.outcomes(cancelled) == ["cancelled"]
    place.engine.inner.cancel(place.handles(), 30.0)
    place.until(lambda: place.outcomes(preempted))
    place.go()
    place.until(lambda: place.ended(preempted))
    assert place.outcomes(preempted) == ["handed back", "succeeded"]
    assert place.jobs.result(preempted) == {"first": 1, "attempt": 1}
    assert place.jobs.get_task(preempted).attempts_used == 1


def test_a_job_with_a_token_of_another_claim_ends_with_75(place: Place) -> None:
    task_id = place.schedule()
    place.until(lambda: place.ended(task_id))
    (job,) = place.engine.submitted
    environ = {**os.environ, **job.env, TOKEN_VARIABLE: "0" * 64}
    wrong = subprocess.run(job.argv, env=environ, capture_output=True, text=True, timeout=90)
    assert (wrong.returncode, "says 401: no right token" in wrong.stderr) == (NOT_MINE, True), wrong.stderr
    late = subprocess.run(job.argv, env={**os.environ, **job.env}, capture_output=True, text=True, timeout=90)
    assert (late.returncode, "says 409: claim" in late.stderr) == (NOT_MINE, True), late.stderr
    assert len(place.lines("begin")) == 1
    assert TOKEN_VARIABLE not in " ".join(job.argv)
    assert job.env[TOKEN_VARIABLE] not in " ".join([*job.argv, *job.labels.values(), job.name])
    assert job.env[GATEWAY_VARIABLE] == f"http://{place.config.gateway.listen}"


def _has_step(place: Place, task_id: int) -> bool:
    with place.jobs.database.read() as tx:
        return tx.run("SELECT count(*) FROM schedd_checkpoints WHERE task_id = :id", id=task_id).scalar_one() == 1


# Tokens and claims, without processes


def test_a_token_is_good_for_one_claim_of_one_store(held: Held) -> None:
    assert held.client.look().kind == "Work"
    for other in ({"secret": "another secret of daemons"}, {"store": "x"}, {"executor": "x"}, {"number": 99}):
        with pytest.raises(NotMineError, match="401"):
            held.with_token(held.token(**other)).look()
    foreign = GatewayClient(held.place.config.gateway.urls, PlacedClaim(NAME, held.task_id + 1, 1), held.token())
    with pytest.raises(NotMineError, match="401"):
        foreign.look()


def test_a_claim_is_taken_over_once_and_ends_with_its_token(held: Held) -> None:
    first = held.attach()
    assert held.attach().worker == first.worker, "the answer was lost, and it asks again"
    with pytest.raises(NotMineError, match="409"):
        held.attach("another process")
    stolen = held.client.sync(Sync("another process", first.worker, renew=True))
    assert not stolen.held
    outcome = held.succeeded(first)
    done = held.client.sync(Sync("a", first.worker, outcome=outcome, leaves=True))
    assert (done.held, done.recorded) == (True, True)
    again = held.client.sync(Sync("a", first.worker, outcome=outcome, leaves=True))
    assert (again.held, again.recorded) == (False, True), "it was recorded, once"
    assert held.place.outcomes(held.task_id) == ["succeeded"]
    with pytest.raises(NotMineError, match="409"):
        held.client.look()
    with pytest.raises(NotMineError, match="409"):
        held.client.load(GatewayLoad("a", first.worker, "results", {}))


def test_a_job_cannot_write_for_another_worker(held: Held) -> None:
    place, mine = held.place, held.attach()
    other = Held.__new__(Held)
    place.engine.drop_requests = 1000
    place.placer._link._ask_again = 0.0
    other.__init__(place)  # type: ignore[misc]
    theirs = other.attach("b")
    for message in (Sync("a", theirs.worker, leaves=True), Sync("b", theirs.worker, renew=True)):
        assert not held.client.sync(message).held
    bad = held.succeeded(theirs)
    with pytest.raises(Exception, match="400"):
        held.client.sync(Sync("a", mine.worker, outcome=bad))
    with pytest.raises(Exception, match="400"):
        held.client.sync(Sync("a", mine.worker, outcome=held.succeeded(mine)._replace(state=99)))
    assert place.state(other.task_id) is TaskState.RUNNING
    other.client.close()


def test_a_claim_is_taken_from_a_handler_that_stalls_or_is_cancelled_by_force(held: Held) -> None:
    first = held.attach()
    given = held.client.sync(Sync("a", first.worker, take="stalled: no heartbeat for 1 s"))
    assert (given.held, held.place.outcomes(held.task_id)) == (False, ["lost"])
    held.place.placer._link._ask_again = 0.0
    held.place.placer.step()
    again = held.place.placements(held.task_id)[-1].claim
    held.claim = PlacedClaim(NAME, held.task_id, again)
    held.client = held.with_token(held.token())
    second = held.attach()
    assert held.client.sync(Sync("a", second.worker)).held
    held.place.jobs.cancel_task(held.task_id, force=True)
    assert not held.client.sync(Sync("a", second.worker)).held
    assert held.place.state(held.task_id) is TaskState.CANCELLED
    held.client.sync(Sync("a", second.worker))  # what comes again counts nothing
    assert held.place.jobs.stats().total.outcomes == {"lost": 1, "cancelled": 1}, "each counts, as a worker's own do"


def test_a_request_that_comes_twice_is_done_once(held: Held) -> None:
    first = held.attach()
    step = GatewayRequest("record", {"name": "s", "seq": 1, "value": "7"})
    for value in ("7", "8"):
        step.args["value"] = value
        (answer,) = held.client.sync(Sync("a", first.worker, asked=[step])).answers
        assert answer is not None
        assert answer["held"]
    assert [row[2] for row in held.client.load(GatewayLoad("a", first.worker, "recorded", {})).value] == ["7"]


def test_a_token_reads_only_what_is_its_tasks_own(held: Held) -> None:
    """What the task has spawned or awaits, and what it depends on; nobody else's results."""
    first, jobs = held.attach(), held.place.jobs
    spec = msgspec.to_builtins(jobs.task("Work", {"notes": str(held.place.notes), "how": "plain"})._finished({}))
    (made,) = held.client.sync(
        Sync(
            "a", first.worker, asked=[GatewayRequest("spawn", {"name": "c", "seq": 1, "specs": [spec], "group": None})]
        )
    ).answers
    assert made is not None
    ((child, _),) = json.loads(made["value"])
    awaited, foreign = (held.place.schedule() for _ in range(2))
    write(jobs, f"UPDATE schedd_tasks SET headers = '{{\"after\": {awaited}}}' WHERE id = {held.task_id}")
    asked = GatewayRequest("await_tasks", {"name": "~map", "seq": 2, "items": [awaited], "timeout": None, "many": True})
    held.client.sync(Sync("a", first.worker, asked=[asked]))

    def read(*ids: int) -> Any:
        return held.client.load(GatewayLoad("a", first.worker, "ends", {"ids": list(ids)})).value

    for mine in (child, awaited):
        jobs.cancel_task(mine)
        ((value, failure),) = read(mine)
        assert (value, failure["type"]) == (None, "TaskCancelledError")
    jobs.cancel_task(foreign)
    for ids in ((foreign,), (child, foreign), (held.task_id,), (99_999,)):
        with pytest.raises(Exception, match="403"):
            read(*ids)


def test_a_token_awaits_only_tasks_that_its_task_was_told_of(held: Held) -> None:
    """By its payload, its headers, an event or a result; a number that its own step returned is none of these."""
    first, jobs = held.attach(), held.place.jobs
    others = [held.place.schedule() for _ in range(5)]
    for one in others:
        jobs.cancel_task(one)
    in_payload, in_headers, in_event, in_step, nowhere = others

    def ask(what: str, **args: Any) -> dict[str, Any]:
        (answer,) = held.client.sync(Sync("a", first.worker, asked=[GatewayRequest(what, args)])).answers
        assert answer is not None
        assert answer["held"]
        return answer

    def await_one(task: int) -> dict[str, Any]:
        return ask("await_tasks", name=f"~task:{task}", seq=task, items=[task], timeout=None)

    payload = {"notes": str(held.place.notes), "how": f"plain {in_payload}"}
    write(
        jobs,
        f"UPDATE schedd_tasks SET payload = :payload, headers = :headers WHERE id = {held.task_id}",
        payload=json.dumps(payload),
        headers=json.dumps({"after": str(in_headers)}),
    )
    ask("record", name=f"~task:{nowhere}#1", seq=1, value=f"{in_step}")
    jobs.emit_event("told", {"task": in_event})
    ask("await_event", name="~event:told", seq=2, event="told", timeout=None)
    for task in (in_payload, in_headers, in_event):
        assert json.loads(await_one(task)["failure"])["type"] == "TaskCancelledError"
    for task in (in_step, nowhere, held.task_id, 99_999):
        error = await_one(task)["error"]
        assert error["type"] == "PermanentError"
        assert f"may not await task {task} through the gateway" in error["args"][0]
        with pytest.raises(Exception, match="403"):
            held.client.load(GatewayLoad("a", first.worker, "ends", {"ids": [task]}))


def test_requests_that_are_none_are_refused(held: Held) -> None:
    url = str(held.place.config.gateway.urls[0])
    path = f"{url}/v1/jobs/{NAME}/{held.task_id}/{held.claim.number}/"
    mine = {"authorization": f"Bearer {held.token()}"}
    with httpx2.Client(timeout=60) as client:
        assert client.get(f"{url}/livez").status_code == 200
        assert client.post(f"{url}/v1/tasks").status_code == 404
        assert client.get(f"{path}look", headers=mine).status_code == 405
        assert client.post(f"{path}look").status_code == 401
        assert client.post(f"{path}attach", content=b"{", headers=mine).status_code == 400
        assert client.post(f"{path}attach", content=b'"\xff"', headers=mine).status_code == 400
        assert client.post(f"{path}nothing", content=b"{}", headers=mine).status_code == 400
        assert client.post(f"{path}sync", content=b"x" * 70_000, headers=mine).status_code == 413
        chunks = (b"x" * 1000 for _ in range(70))
        assert client.post(f"{path}sync", content=chunks, headers=mine).status_code == 413


def test_slow_senders_block_no_other(held: Held) -> None:
    host, _, port = str(held.place.config.gateway.listen).partition(":")
    head = (
        f"POST /v1/jobs/{NAME}/{held.task_id}/{held.claim.number}/sync HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {held.token()}\r\nContent-Length: 1000\r\n\r\n{{"
    )
    slow = [socket.create_connection((host, int(port))) for _ in range(40)]
    try:
        for one in slow:
            one.sendall(head.encode())
        assert held.client.look().kind == "Work"
        assert held.attach().worker
    finally:
        for one in slow:
            one.close()


def test_a_store_that_is_away_is_waited_for(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise StoreUnavailableError("the database is away: postgresql://user:secret@host")

    monkeypatch.setattr(held.place.jobs.database, "change", away)
    with pytest.raises(StoreUnavailableError, match="503: the store cannot be reached") as caught:
        held.attach()
    assert "secret" not in str(caught.value)


def test_another_gateway_is_asked_when_one_is_away(held: Held) -> None:
    urls = ["http://127.0.0.1:9", *held.place.config.gateway.urls]
    client = GatewayClient(urls, held.claim, held.token())
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        client.look()
    assert client.look().kind == "Work"
    client.close()


def test_a_gateway_with_a_certificate_speaks_https(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    place = held.place
    certificates = Certificates(place.directory)
    certificates.server("127.0.0.1")
    file = str(place.directory / "127.0.0.1.pem")
    section = msgspec.structs.replace(place.config.gateway, listen="127.0.0.1:0", cert=file, key=file)
    gateway = JobGateway(msgspec.structs.replace(place.config, gateway=section), place.jobs, lambda: None)
    gateway.start()
    try:
        assert gateway.url.startswith("https://")
        with pytest.raises(StoreUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            GatewayClient([gateway.url], held.claim, held.token()).look()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
        assert GatewayClient([gateway.url], held.claim, held.token()).look().kind == "Work"
    finally:
        gateway.stop()
    section = msgspec.structs.replace(section, key=f"{file}.none")
    with pytest.raises(ConfigError, match="cannot use the certificate"):
        JobGateway(msgspec.structs.replace(place.config, gateway=section), place.jobs, lambda: None).start()
