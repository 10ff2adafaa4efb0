"""After a change of a payload whatever derives from it is that of the new payload, or the change is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from scheduler import Context, Debounce, DuplicateKeyError, PayloadError, PermanentError, Scheduler, Task, Unique
from scheduler.testing import drain
from support.bench import Bench


class Order(Task, kind="changed.Order", unique=Unique(by=("order",)), concurrency_key="{customer}"):
    order: int
    customer: str = "a"
    fails: bool = False

    def run(self, ctx: Context) -> int:
        ctx.state.ran.append(str(self.order))
        if self.fails:
            raise PermanentError("as told")
        return self.order


class Queued(Order, kind="changed.Queued", unique=Unique(by=("order",), states=("scheduled",))):
    pass


class Page(Task, kind="changed.Page", debounce=Debounce(30, 100, by=("page",))):
    page: str
    text: str = ""

    def run(self, ctx: Context) -> None:
        ctx.state.ran.append(f"{self.page}: {self.text}")


class First(Task, kind="changed.Versions", unique=Unique(by=("number",))):
    number: int

    def run(self, ctx: Context) -> None:
        pass


class Second(Task, kind="changed.Versions", unique=Unique(by=("order",)), schema_version=2):
    order: int
    note: str = ""

    @staticmethod
    def upgrade(payload: dict[str, Any], version: int) -> dict[str, Any]:
        return {"order": payload["number"]}

    def run(self, ctx: Context) -> None:
        ctx.state.ran.append(f"{self.order} {self.note}")


@pytest.fixture
def jobs(bench: Bench) -> Scheduler:
    for kind in (Order, Queued, Page):
        bench.jobs.register(kind)
    drain(bench.jobs)  # publishes the kinds
    return bench.jobs


def row(bench: Bench, task_id: int) -> Any:
    with bench.jobs.database.read() as tx:
        sql = "SELECT key, held_key, lane, state, payload FROM schedd_tasks WHERE id = :id"
        return tx.connection.execute(sa.text(sql), {"id": task_id}).one()


def dead(jobs: Scheduler, order: int) -> int:
    made = jobs.task(Order(order, fails=True)).schedule()
    drain(jobs)
    assert jobs.get_task_status(made).value == "dead"
    return made


def published(bench: Bench) -> Scheduler:
    """A program without the types."""
    return bench.worker()


Change = Callable[[Scheduler, int, dict[str, Any]], Any]
CHANGES: dict[str, Change] = {
    "by id": lambda jobs, task, fields: jobs.update_task(task, fields=fields),
    "whole": lambda jobs, task, fields: jobs.update_task(task, payload={"customer": "a", **fields}),
    "by filter": lambda jobs, task, fields: jobs.update_tasks({"ids": [task]}, fields=fields),
}


@pytest.mark.case(94)
@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("with_type", [True, False])
def test_a_waiting_task_has_the_key_of_its_new_payload(
    bench: Bench, jobs: Scheduler, how: str, with_type: bool
) -> None:
    changed = jobs.task(Order(1)).after(60).schedule()
    CHANGES[how](jobs if with_type else published(bench), changed, {"order": 2, "customer": "b"})
    found = row(bench, changed)
    assert found.key == found.held_key == 'unique:{"order":2}'
    assert found.lane.endswith("b")
    first, second = jobs.task(Order(1)).schedule(), jobs.task(Order(2)).schedule()
    assert (first.created, second) == (True, changed)
    bench.clock.advance(60)
    drain(jobs)
    assert sorted(bench.script.ran) == ["1", "2"]


@pytest.mark.case(94)
@pytest.mark.parametrize("with_type", [True, False])
def test_a_change_to_a_key_that_is_held_is_refused(bench: Bench, jobs: Scheduler, with_type: bool) -> None:
    one, two = jobs.task(Order(1)).schedule(), jobs.task(Order(2)).schedule()
    caller = jobs if with_type else published(bench)
    with pytest.raises(DuplicateKeyError) as caught:
        caller.update_task(one, fields={"order": 2}, queue="other")
    assert caught.value.existing_id == two
    done = caller.update_tasks({"kind": Order.__task_options__.kind}, fields={"order": 2}, queue="other")
    assert (done.ids, done.conflicts, list(done.refused)) == ([two], {one: two}, [one])
    found = row(bench, one)
    assert (found.key, found.held_key) == ('unique:{"order":1}',) * 2
    assert msgspec.json.decode(found.payload)["order"] == 1
    assert jobs.get_task(one).queue == "default"


@pytest.mark.case(94)
def test_of_several_one_takes_the_key(jobs: Scheduler) -> None:
    made = [jobs.task(Order(number)).schedule() for number in range(3)]
    done = jobs.update_tasks({"ids": made}, fields={"order": 9})
    assert len(done.ids) == 1
    assert len(done.conflicts) == 2


def test_a_field_that_makes_no_key_changes_beside_it(bench: Bench, jobs: Scheduler) -> None:
    made = jobs.task(Order(1)).schedule()
    for caller in (jobs, published(bench)):
        caller.update_task(made, fields={"customer": "c"})
    assert row(bench, made).held_key == 'unique:{"order":1}'


def test_a_holder_that_keeps_nobody_out_gives_its_key_up(bench: Bench, jobs: Scheduler) -> None:
    waits = jobs.task(Queued(1)).depend_on([jobs.task(Order(7)).after(600).schedule()]).schedule()
    other = jobs.task(Queued(2)).after(60).schedule()
    jobs.update_task(other, fields={"order": 1})
    assert row(bench, other).held_key == 'unique:{"order":1}'
    assert row(bench, waits).held_key is None


@pytest.mark.case(94)
def test_debounced_calls_find_the_task_of_their_page(bench: Bench, jobs: Scheduler) -> None:
    changed = jobs.task(Page("one", "old")).schedule()
    jobs.update_task(changed, fields={"page": "two"})
    assert jobs.task(Page("one", "new")).schedule() != changed
    assert jobs.task(Page("two", "newer")).schedule() == changed
    bench.clock.advance(30)
    drain(jobs)
    assert sorted(bench.script.ran) == ["one: new", "two: newer"]


@pytest.mark.case(94)
def test_a_replay_with_another_payload(bench: Bench, jobs: Scheduler) -> None:
    letter = dead(jobs, 1)
    other = jobs.task(Order(2)).after(60).schedule()
    with pytest.raises(DuplicateKeyError) as caught:
        jobs.dead_letters.replay(letter, payload=Order(2))
    assert caught.value.existing_id == other
    assert jobs.get_task(letter).key == 'unique:{"order":1}'
    jobs.dead_letters.replay(letter, payload=Order(3))
    assert row(bench, letter).held_key == 'unique:{"order":3}'
    assert jobs.task(Order(3)).schedule() == letter
    assert jobs.task(Order(1)).schedule().created


def test_a_key_that_a_person_gave_stays(bench: Bench, jobs: Scheduler) -> None:
    letter = dead(jobs, 1)
    jobs.dead_letters.replay(letter, key="by hand", payload=Order(3))
    jobs.update_task(letter, fields={"order": 4})
    assert row(bench, letter).held_key == "by hand"


@pytest.mark.case(94)
@pytest.mark.parametrize("with_type", [True, False])
def test_a_stored_bulk_with_other_fields(bench: Bench, jobs: Scheduler, with_type: bool) -> None:
    letters = [dead(jobs, number) for number in (1, 2)]
    caller = jobs if with_type else published(bench)
    made = caller.bulks.create("replay", ids=letters, fields={"order": 5, "fails": False})
    done = caller.bulks.run(made.name)
    assert (done.done, done.passed) == (1, 1)
    assert sorted(filter(None, (row(bench, letter).held_key for letter in letters))) == ['unique:{"order":5}']


@pytest.mark.case(94)
def test_a_copy_with_another_payload(bench: Bench, jobs: Scheduler) -> None:
    letter = dead(jobs, 1)
    held = jobs.task(Order(2)).after(60).schedule()
    with pytest.raises(DuplicateKeyError):
        jobs.copy_task(letter, fields={"order": 2})
    with pytest.raises(DuplicateKeyError):
        jobs.dead_letters.replay(letter, payload=Order(2), copy=True)
    third = jobs.copy_task(letter, fields={"order": 3, "fails": False})
    fourth = jobs.dead_letters.replay(letter, payload=Order(4), copy=True)
    assert [jobs.task(Order(number)).schedule() for number in (2, 3, 4)] == [held, third, fourth]
    beside = jobs.copy_task(held)
    assert row(bench, beside).key is None


@pytest.mark.case(94)
def test_an_older_payload_is_upgraded_first(bench: Bench) -> None:
    older, newer = bench.worker(), bench.worker()
    older.register(First)
    newer.register(Second)
    made = older.task(First(1)).after(60).schedule()
    drain(newer)
    with pytest.raises(PayloadError, match=r"schema_version 1, kind .* has 2"):
        published(bench).update_task(made, fields={"note": "b"})
    newer.update_task(made, fields={"order": 2, "note": "b"})
    assert row(bench, made).held_key == 'unique:{"order":2}'
    bench.clock.advance(60)
    drain(newer)
    assert bench.script.ran == ["2 b"]


@pytest.mark.case(94)
@pytest.mark.parametrize("seed", range(3))
def test_random_changes_leave_each_key_to_its_payload(bench: Bench, jobs: Scheduler, seed: int) -> None:
    """Whatever verbs do, a key of fields is that of the stored payload, and no two live tasks do one piece of work."""
    rng, caller = random.Random(seed), published(bench)
    verbs: list[Callable[[int, int], Any]] = [
        lambda _, n: jobs.task(Order(n)).after(rng.choice([0, 5])).schedule(),
        lambda _, n: jobs.task(Order(n, fails=True)).schedule(),
        lambda i, n: jobs.update_task(i, fields={"order": n, "customer": str(n)}),
        lambda i, n: caller.update_task(i, fields={"order": n, "customer": str(n)}),
        lambda i, n: caller.update_tasks({"ids": [i]}, payload={"order": n, "customer": str(n)}),
        lambda i, n: jobs.dead_letters.replay(i, payload=Order(n, str(n))),
        lambda i, n: jobs.dead_letters.replay(i),
        lambda i, n: jobs.retry_task(i),
        lambda i, n: jobs.rerun(i),
        lambda i, n: jobs.cancel_task(i),
        lambda i, n: bench.clock.advance(2),
        lambda i, n: drain(jobs),
    ]
    from scheduler import SchedulerError

    for _ in range(60):
        tasks = jobs.list_tasks(limit=100)
        try:
            rng.choice(verbs)(rng.choice(tasks).id if tasks else 1, rng.randrange(4))
        except SchedulerError:
            continue
        with jobs.database.read() as tx:
            rows = tx.connection.execute(sa.text("SELECT key, held_key, lane, payload FROM schedd_tasks")).fetchall()
        for key, _, lane, payload in rows:
            fields = msgspec.json.decode(payload)
            assert key == f'unique:{{"order":{fields["order"]}}}'
            assert lane.endswith(fields["customer"])
        held = [found.held_key for found in rows if found.held_key is not None]
        assert len(held) == len(set(held))
