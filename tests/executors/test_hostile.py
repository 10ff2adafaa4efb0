"""A hostile engine: requests and answers are lost, it forgets jobs, daemons and jobs are killed. Counted, not judged.

``make soak`` runs it; ``PLACEMENTS`` in the environment says how many tasks there are.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from scheduler import TaskState
from scheduler.store import reaper
from support.databases import Database
from support.executor_rigs import ProcessRig
from support.placing import Place

TASKS = int(os.environ.get("PLACEMENTS", "150"))
AT_ONCE = 4
LIMIT_S = 1700.0


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_task_is_lost_or_recorded_twice(database: Database, tmp_path: Path, tell: Callable[[str], None]) -> None:
    chance = random.Random(7)
    settings = ProcessRig().settings(tmp_path) + f"max_running = {AT_ONCE}\nmax_pending = {AT_ONCE}\n"
    place = Place(database.url, tmp_path, settings, submit_grace=2.0)
    ids = [place.schedule("slow") for _ in range(TASKS)]
    done = Counter[str]()
    deadline = time.monotonic() + LIMIT_S
    daemons = [place]
    try:
        while not _all_succeeded(place, ids, done):
            assert time.monotonic() < deadline, place.told()
            _be_hostile(place, chance, done)
            if chance.random() < 0.01:  # the daemon is killed: another one takes over
                done["daemons killed"] += 1
                place.jobs.database.change(lambda tx: tx.run("UPDATE schedd_executors SET until = 0"))
                place = Place(database.url, tmp_path, settings, holder=f"daemon {len(daemons)}", submit_grace=2.0)
                daemons.append(place)
            place.placer._link._ask_again = 0.0
            place.placer.step()
            place.jobs.database.change(lambda tx: reaper.reap(tx))
            time.sleep(0.02)
        place.engine.forgets = False
        states = Counter(place.state(task_id) for task_id in ids)
        recorded = Counter(outcome for task_id in ids for outcome in place.outcomes(task_id))
        done["placements"] = sum(len(place.placements(task_id)) for task_id in ids)
        done["bodies"] = len(place.lines("begin"))
    finally:
        for one in daemons:
            one.close()
    assert states == {TaskState.SUCCESS: TASKS}
    assert recorded["succeeded"] == TASKS
    assert place.side_by_side() == 0
    tell(f"{TASKS} tasks, " + ", ".join(f"{number} {what}" for what, number in sorted(done.items())))


def _all_succeeded(place: Place, ids: list[int], done: Counter[str]) -> bool:
    """What has failed since its jobs did not begin three times in a row is retried, as an operator would."""
    with place.jobs.database.read() as tx:
        states = {row.id: TaskState.from_code(row.state) for row in tx.run("SELECT id, state FROM schedd_tasks")}
    for task_id in ids:
        if states[task_id] is TaskState.DEAD:
            done["tasks retried by hand"] += 1
            place.jobs.retry_task(task_id)
    return set(states.values()) == {TaskState.SUCCESS}


def _be_hostile(place: Place, chance: random.Random, done: Counter[str]) -> None:
    engine = place.engine
    for what in ("requests", "answers"):
        if chance.random() < 0.02:
            setattr(engine, f"drop_{what}", 1)
            done[f"{what} lost"] += 1
    engine.twice = chance.random() < 0.2
    if engine.forgets:
        engine.forgets = chance.random() < 0.98
    elif chance.random() < 0.01:
        engine.forgets = True
        done["times that it forgot all"] += 1
    if chance.random() < 0.02:
        for seen in engine.inner.observe():
            if not seen.phase.over and chance.random() < 0.5:
                with suppress(FileNotFoundError, ProcessLookupError, ValueError):
                    os.killpg(int((place.directory / "jobs" / seen.name / "pid").read_text()), signal.SIGKILL)
                    done["jobs killed"] += 1
