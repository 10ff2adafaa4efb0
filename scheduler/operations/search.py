"""Search: the tasks that have what the words of a filter say."""

from __future__ import annotations

from scheduler.store.read.paging import Window as Window
from scheduler.store.read.search import WINDOW as WINDOW
from scheduler.store.read.search import any_with as any_with
from scheduler.store.read.search import search as search
