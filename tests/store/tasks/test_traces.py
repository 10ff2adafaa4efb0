"""The trace column: written under the fence, and found by later attempts and by children."""

from __future__ import annotations

from scheduler import Context, Scheduler, task
from scheduler.model.trace import TraceContext
from scheduler.store.tasks import traces
from scheduler.testing import drain
from support.databases import Database
from support.fleet import rows


@task
def fine(ctx: Context) -> None:
    pass


def text(number: int) -> str:
    return TraceContext(number, number).traceparent


def test_a_trace_is_kept_and_linked(database: Database) -> None:
    jobs = Scheduler.for_testing(url=database.url)
    jobs.register(fine)
    with jobs.batch() as batch:
        parents = [batch.task(fine) for _ in range(40)]
        batch.task(fine).depend_on(parents)
    drain(jobs)
    ids, child = [int(i) for i in batch.ids[:-1]], int(batch.ids[-1])
    (worker,) = {row.worker for row in rows(jobs, "SELECT worker FROM schedd_attempts")}
    written = [(task_id, 1, text(task_id)) for task_id in (*ids[:3], *ids[5:], child)]
    jobs.database.change(lambda tx: traces.write(tx, worker, written))
    jobs.database.change(lambda tx: traces.write(tx, worker + 1, [(ids[3], 1, text(99))]))  # another worker's
    with jobs.database.read() as tx:
        found = traces.linked(tx, [(child, 2), (ids[0], 1)])
    assert found[ids[0]] == traces.Linked(None, (), 0)
    newest = ids[-traces.MAX_LINKED_PARENTS :]
    assert found[child].previous == text(child)
    assert sorted(found[child].parents) == sorted(text(i) for i in newest)
    shown = {info.claim: info.trace for task_id in (ids[3], child) for info in jobs.get_attempts(task_id)}
    assert shown == {1: text(child)}
    assert jobs.get_attempts(ids[3])[0].trace is None
    jobs.close()
