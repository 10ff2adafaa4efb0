"""Tools for tests: a clock that a test moves, a scheduler that runs inline, one handler by itself, assertions on tasks.

The fixtures of pytest are in ``scheduler/pytest_plugin.py``.
"""

from scheduler.testing.clock import FakeClock
from scheduler.testing.draining import Drain, assert_scheduled, drain, inline
from scheduler.testing.draining import engine_of as engine_of
from scheduler.testing.performing import Calls, perform, perform_async

__all__ = [
    "Calls",
    "Drain",
    "FakeClock",
    "assert_scheduled",
    "drain",
    "inline",
    "perform",
    "perform_async",
]
