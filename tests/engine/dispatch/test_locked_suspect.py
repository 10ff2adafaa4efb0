"""A suspect whose row another session holds on PostgreSQL: the worker goes on with all other tasks."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from support.bench import Bench, notify_and_step, run_claimed

pytestmark = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)


@pytest.mark.case(60)
def test_a_suspect_whose_row_is_locked_delays_no_other_task(bench: Bench) -> None:
    suspect = bench.step("suspect").schedule()
    bench.execute("UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2")
    other = bench.step("other").schedule()
    with bench.jobs.database.write() as tx:
        tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR UPDATE"), {"id": suspect})
        for _ in range(3):
            notify_and_step(bench.jobs)
            run_claimed(bench.jobs)
            bench.clock.advance(1.0)
        assert bench.states(suspect, other) == ["scheduled", "success"]
    bench.clock.advance(60.0)
    bench.drain()
    assert bench.state(suspect) == "success"
