"""Where an attempt stands: what the stack leaves out."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from scheduler.engine.attempt import place
from scheduler.engine.execution import run
from scheduler.model import registry


@pytest.mark.parametrize("caller", [run.__file__, registry.__file__])
def test_frames_of_what_calls_the_handler_are_left_out(caller: str) -> None:
    """A module that moves must be named anew there: nothing else would notice."""
    stands, over = threading.Event(), threading.Event()
    names = {"stands": stands, "over": over}
    exec(compile("def call():\n  handler()\n", caller, "exec"), names)
    exec(compile("def handler():\n  stands.set(); over.wait(60)\n", "/home/ada/shop.py", "exec"), names)
    thread = threading.Thread(target=names["call"])  # type: ignore[arg-type]
    thread.start()
    try:
        assert stands.wait(60)
        stack = place.stack_of(None, place.Threads(), thread.ident or 0)
    finally:
        over.set()
        thread.join()
    assert Path(caller).name not in stack
    assert "/home/ada/shop.py" in stack
