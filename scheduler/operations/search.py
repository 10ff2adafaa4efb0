"""Tasks found by a filter."""

from __future__ import annotations

from scheduler.store.read.paging import Window as Window
from scheduler.store.read.search import WINDOW as WINDOW
from scheduler.store.read.search import search as search
