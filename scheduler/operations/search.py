"""Search: the tasks that have what the words of a filter say."""

from __future__ import annotations

from scheduler.store.read.choose import TaskFilter as TaskFilter
from scheduler.store.read.paging import Window as Window
from scheduler.store.read.search import FIELDS as FIELDS
from scheduler.store.read.search import WINDOW as WINDOW
from scheduler.store.read.search import Term as Term
from scheduler.store.read.search import any_with as any_with
from scheduler.store.read.search import search as search
from scheduler.store.read.search import search_ids as search_ids
from scheduler.store.read.tasks import list_tasks as list_tasks
