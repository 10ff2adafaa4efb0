"""Running tasks, live, and how much the fleet did in each of the last minutes."""

from __future__ import annotations

from scheduler.store.read.series import Minute as Minute
from scheduler.store.read.series import minutes as minutes
from scheduler.store.read.top import RunningTask as RunningTask
from scheduler.store.read.top import Top as Top
from scheduler.store.read.top import top as top
