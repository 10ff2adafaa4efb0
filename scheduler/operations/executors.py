"""Executors: where tasks run that name one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from scheduler.operations.desk import Desk
from scheduler.store.read.executors import executor_statuses

if TYPE_CHECKING:
    from scheduler.config.executors import Executor


class ExecutorInfo(NamedTuple):
    """One executor. ``worker``: its id among the workers; ``placed_by``: the daemon that starts its jobs; ``wanted``:
    how many workers the backlog asks for, where jobs are workers; ``pending``, ``running``: its jobs."""

    executor: str
    type: str | None = None
    place: str | None = None
    worker: int | None = None
    placed_by: str | None = None
    draining: bool = False
    wanted: int | None = None
    pending: int = 0
    running: int = 0
    trouble: str | None = None


def listed(desk: Desk, sections: Mapping[str, Executor]) -> list[ExecutorInfo]:
    """The executors of a configuration, and those that daemons of this store have had."""
    with desk.read() as tx:
        found = executor_statuses(tx, counted_too=True)
    made = []
    for name in sorted({*sections, *found}):
        one, known, section = ExecutorInfo(name), found.get(name), sections.get(name)
        if section is not None:
            one = one._replace(type=section.type, place=section.place)
        if known is not None:
            scale = known.scale
            one = one._replace(
                worker=known.worker,
                placed_by=known.placed_by,
                draining=known.draining,
                pending=known.pending,
                running=known.running,
                wanted=None if scale is None else scale.wanted,
                trouble=known.trouble or (None if scale is None else scale.trouble),
            )
        made.append(one)
    return made
