"""Searches tasks by a filter, also by what they are not, looking at a bounded number of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.model.task_filter import TaskFilter
from scheduler.model.task_filter import Term as Term
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.read.paging import BIGGEST, Ids, Window, ids_of
from scheduler.store.read.tasks import FoundTasks, get_tasks
from scheduler.store.read.where import asked

WINDOW = 100_000  # tasks that are looked at for one page where no index leads to them, the newest first
_CHUNK = 1000  # tasks whose payloads are compared at a time
_COMPARED = 20_000  # tasks whose payloads are compared for one page


def search(
    tx: Tx,
    wanted: TaskFilter | Sequence[Term],
    *,
    limit: int = 50,
    cursor: int | None = None,
    window: Window | None = None,
    whole: bool = False,
    broken: Callable[[str], object] | None = None,
) -> FoundTasks:
    """A page of the tasks that a filter chooses, by ids under ``cursor``.

    ``window``: how far to look where no index leads to them; None: down ``WINDOW`` tasks, with ``whole`` down all.
    ``broken``: called with each row that cannot be read, which is left out.
    """
    page = search_ids(tx, wanted, limit=limit, cursor=cursor, window=window, whole=whole)
    return FoundTasks(get_tasks(tx, page.ids, broken), page.cursor, page.bound)


def search_ids(
    tx: Tx,
    wanted: TaskFilter | Sequence[Term],
    *,
    limit: int,
    cursor: int | None = None,
    window: Window | None = None,
    whole: bool = False,
) -> Ids:
    """The ids of a page of :func:`search`."""
    wanted = wanted if isinstance(wanted, TaskFilter) else TaskFilter(tuple(wanted))
    page_asked = asked(tx, wanted)
    if wanted.ids is not None:
        window = None
    most = _COMPARED if window is None and not whole else BIGGEST
    if window is None and not whole and wanted.ids is None:
        window = Window(WINDOW)
    if not wanted.of("payload"):
        return ids_of(tx, page_asked, cursor, limit, window)
    ids: list[int] = []
    compared = 0
    while True:
        page = ids_of(tx, page_asked, cursor, _CHUNK, window)
        compared += len(page.ids)
        texts = _payloads(tx, page.ids)
        ids += [one for one in page.ids if one in texts and wanted.fits(texts[one])]
        cursor = page.cursor
        if len(ids) > limit:
            return Ids(ids[:limit], ids[limit - 1])
        if cursor is None or page.bound or compared >= most:
            return Ids(ids, cursor, cursor is not None)


def any_with(tx: Tx, *terms: Term) -> bool:
    """Whether a task fits all terms, which are not of payloads, among the newest ``WINDOW``."""
    return bool(ids_of(tx, asked(tx, TaskFilter(terms)), None, 1, Window(WINDOW)).ids)


def _payloads(tx: Tx, ids: Sequence[int]) -> dict[int, str | None]:
    """The payloads of these tasks, as far as they are there."""
    sql = (
        "SELECT t.id, coalesce(t.payload, v.value) FROM schedd_tasks t LEFT JOIN schedd_task_values v "
        f"ON v.task_id = t.id AND v.name = 'payload' WHERE t.id IN {tx.dialect.ids()}"
    )
    return {row[0]: row[1] for row in tx.run(sql, ids=bind_rows(ids))} if ids else {}
