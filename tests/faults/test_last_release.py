"""The last release and this checkout on one store: real daemons of both, upgraded under load, and the ways back."""

from __future__ import annotations

import importlib
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from faults.harness import rows, until
from scheduler import Scheduler
from scheduler.cli.root import root
from scheduler.model import state as st
from scheduler.store.db import migrate
from support.databases import Database
from support.last_release import RELEASES, Shop, keep_as_of_now, schema, stored
from support.next_program import NEXT, become, write_scripts
from support.processes import Child, Nursery
from support.runner import Runner
from support.session import files_directory

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]
PATIENCE = 120.0


@pytest.fixture
def shop(empty_database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A store of the last release, filled by it."""
    place = Path(tempfile.mkdtemp(prefix="r", dir=files_directory()))
    monkeypatch.setenv("SHOP_NOTES", "")  # restored at the end
    with Nursery(place) as nursery:
        made = Shop(empty_database, nursery)
        nursery.write("store.jsonl", "\n".join([*stored(), ""]))
        made.old_control("db", "import", "store.jsonl")
        keep_as_of_now(empty_database)
        yield made
        for child in nursery.children:
            print(*child.seen[-20:], sep="\n")  # shown when the test failed
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The users' program, imported by this checkout."""
    monkeypatch.syspath_prepend(str(RELEASES))
    yield importlib.import_module("shop")
    del sys.modules["shop"]


def schedctl(shop: Shop, *arguments: str) -> tuple[int, str]:
    environment = {"SCHEDD_STORE__URL": shop.database.url, "SCHEDD_CONFIG": "", "SCHEDD_DEBUG": ""}
    result = Runner(env=environment).invoke(root, arguments)
    return result.exit_code, result.output


def pids(shop: Shop, since: int = 0) -> Counter[int]:
    return Counter(pid for _, pid, what in shop.noted()[since:] if what == "done")


def when(condition: Callable[[], Any], what: str, *children: Child) -> None:
    """Wait for it, as long as these are alive."""
    until(lambda: condition() or any(child.process.poll() is not None for child in children), what, PATIENCE)
    assert condition(), f"{what}: a program has ended"


class Caller:
    """Stores tasks with this checkout until it is told to stop."""

    def __init__(self, jobs: Scheduler, store: Callable[..., Iterator[list[int]]]) -> None:
        self._over = threading.Event()
        self._rounds = store(jobs, self._over.is_set)
        self.ids: list[int] = []
        self._thread = threading.Thread(target=self._store, daemon=True)
        self._thread.start()

    def _store(self) -> None:
        for ids in self._rounds:
            self.ids += ids

    def stop(self) -> list[int]:
        self._over.set()
        self._thread.join()
        return self.ids


@pytest.mark.case(9, 96, 97)
def test_a_fleet_is_upgraded_under_load_one_worker_after_the_other(shop: Shop, program: Any) -> None:
    assert int(migrate.HEAD) <= int(schema()) + 1, "keep a later release, as CONTRIBUTING.md says under A release"
    old = shop.old_daemon()
    feeder = shop.old(str(RELEASES / "shop.py"), "feed", shop.database.url)
    when(lambda: len(shop.noted()) > 30, "the last release works", old, feeder)

    code, plan = schedctl(shop, "db", "upgrade", "--dry-run")
    assert (code, "ALTER TABLE schedd_" in plan) == (0, True)
    code, said = schedctl(shop, "db", "upgrade")
    assert code == 0, said
    assert f"upgraded: {schema()} -> {migrate.HEAD}" in said
    assert f"works on with schema {migrate.HEAD}, but not with a later one" in said
    seen = len(shop.noted())
    when(lambda: pids(shop, seen)[old.process.pid] > 10, "the last release works on", old, feeder)

    new = shop.new_daemon()
    jobs = program.program(shop.database.url)
    caller = Caller(jobs, program.store)
    when(lambda: pids(shop, seen)[new.process.pid] > 10, "this one works beside it", old, new, feeder)
    seen = len(shop.noted())
    when(lambda: min(pids(shop, seen)[one.process.pid] for one in (old, new)) > 5, "both share it", old, new, feeder)

    old.kill(signal.SIGTERM)
    assert old.end() == 0
    ids = caller.stop()
    feeder.tell("enough")
    assert feeder.end() == 0
    ids += [int(one) for line in feeder.rest(feeder.out) for one in line.split()]
    assert len(ids) > 50
    jobs.wait(ids, timeout=PATIENCE)
    assert Counter(str(jobs.get_task(one).state) for one in ids) == {"success": len(ids)}
    nothing_is_lost_or_doubled(shop, ids)
    its_store_goes_on(shop, jobs)
    assert [one.text for one in jobs.doctor() if one.level == "problem"] == []
    for child in (old, new):
        assert not [line for line in child.seen if "Traceback" in line or '"error"' in line]

    new.kill(signal.SIGTERM)
    assert new.end() == 0
    again = shop.old_daemon()
    back = program.some(jobs, 0)
    jobs.wait(back, timeout=PATIENCE)
    assert again.process.pid in {pid for task, pid, _ in shop.noted() if task in back}
    jobs.close()
    again.kill(signal.SIGTERM)
    assert again.end() == 0
    if shop.database.is_sqlite:
        the_copy_goes_on(shop, said)


def nothing_is_lost_or_doubled(shop: Shop, ids: list[int]) -> None:
    """Each step of each task was done, and no step twice: both daemons end what they have begun."""
    done = Counter((task, what) for task, _, what in shop.noted())
    assert {task for task, what in done if what == "done"} >= set(ids)
    assert [entry for entry, times in done.items() if times > 1] == []
    reserved = {task for task, what in done if what == "reserved"}
    assert reserved == {task for task, what in done if what == "charged"}


def its_store_goes_on(shop: Shop, jobs: Scheduler) -> None:
    """The tasks that the release's store had come to their ends, and what was known is known."""
    keyed = {row.key: row.id for row in rows(jobs, "SELECT id, key FROM schedd_tasks WHERE key NOT LIKE 'order-%'")}
    assert {"done", "retried", "dead", "retries", "suspended", "waits", "ready", "later", "held"} <= keyed.keys()
    jobs.emit_event("paid:1", {"amount": 7})
    jobs.dead_letters.replay(keyed["dead"], payload={"fails": 0})
    jobs.resume(queue="slow")
    ended = [keyed[key] for key in ("retries", "suspended", "waits", "ready", "held", "dead")]
    jobs.wait(ended, timeout=PATIENCE)
    assert jobs.result(keyed["suspended"], timeout=0) == {"amount": 7}
    assert jobs.result(keyed["retries"], timeout=0) == "answered"
    assert str(jobs.get_task(keyed["later"]).state) == "scheduled"
    assert [one.name for one in jobs.schedules.list()] == ["nightly"]
    assert [run.outcome.value for run in jobs.get_attempts(keyed["retried"])] == ["retried", "succeeded"]
    assert {"pause", "db upgrade"} <= {entry.action for entry in jobs.audit()}


def the_copy_goes_on(shop: Shop, said: str) -> None:
    """The file from before the upgrade is a whole store of the last release."""
    copy = shop.database.path.with_name(f"{shop.database.path.name}-schema-{schema()}.backup")
    assert str(copy) in said
    url = f"sqlite:///{copy}"
    shop.old_control("db", "check", url=url)
    shop.old_control("submit", "pick", "-P", "number:=5", url=url)  # all others may have ended before it was made
    assert left(copy) > 0
    daemon = shop.old_daemon(url)
    when(lambda: left(copy) == 0, "the last release works on the copy", daemon)
    daemon.kill(signal.SIGTERM)
    assert daemon.end() == 0


def left(path: Path) -> int:
    """How many tasks that were stored under load have not ended."""
    with closing(sqlite3.connect(path)) as raw:
        sql = f"SELECT count(*) FROM schedd_tasks WHERE id > 9 AND state < {st.FIRST_TERMINAL}"
        return int(raw.execute(sql).fetchone()[0])


@pytest.mark.case(96)
def test_the_last_release_claims_nothing_beside_a_schema_that_it_does_not_know(
    shop: Shop, program: Any, tmp_path: Path
) -> None:
    """It stood still for longer than its lease while the store went two schemas on."""
    shop.configure(lease=4)
    old = shop.old_daemon()
    after = migrate.HEAD
    with pytest.MonkeyPatch.context() as patch:
        if after == f"{int(schema()) + 1:04}":  # which it knows
            after = NEXT
            patch.setattr(migrate, "HEAD", migrate.HEAD)
            patch.setattr(migrate, "scripts", migrate.scripts)
            become(write_scripts(tmp_path))
        code, said = schedctl(shop, "db", "upgrade")
        assert code == 5
        assert "nothing was changed; stop it first" in said
        old.kill(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        while (done := schedctl(shop, "db", "upgrade"))[0] == 5 and "stop it first" in done[1]:
            assert time.monotonic() < deadline
        assert done[0] == 0, done
    old.kill(signal.SIGCONT)
    line = old.expect("the database has schema")
    assert f"has schema {after}, and this worker knows {schema()}: it claims nothing" in line
    seen = len(shop.noted())
    jobs = program.program(shop.database.url)
    new = shop.new_daemon()
    ids = program.some(jobs, 1) + program.some(jobs, 2)
    jobs.wait(ids, timeout=PATIENCE)
    jobs.close()
    assert old.process.pid not in pids(shop, seen)
    assert new.process.pid in pids(shop, seen)
    nothing_is_lost_or_doubled(shop, ids)
    for child in (old, new):
        child.kill(signal.SIGTERM)
        assert child.end() == 0
    assert len([line for line in old.seen if "claims nothing" in line]) == 1
