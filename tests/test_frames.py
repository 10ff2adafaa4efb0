"""What a child process says, taken apart, whatever a body has written in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from scheduler.engine.frames import Frames, frame

PLAIN = some.none() | some.booleans() | some.integers(-(2**63), 2**63) | some.text()
MESSAGES = some.lists(some.lists(PLAIN | some.lists(PLAIN, max_size=40), min_size=1, max_size=40), max_size=5)


@given(MESSAGES, some.data())
def test_it_comes_apart_wherever_it_was_cut(messages: list[list[Any]], data: some.DataObject) -> None:
    stream, frames, found = b"".join(frame(*message) for message in messages), Frames(), []
    while stream:
        cut = data.draw(some.integers(1, len(stream)))
        found += frames.feed(stream[:cut])
        stream = stream[cut:]
    assert found == messages
    assert not frames.broken


@pytest.mark.parametrize(
    "written",
    [
        "hello\n",  # its first four bytes are a length of 1.8 GB
        '{"level": "info", "message": "a line of a log"}\n',
        "Traceback (most recent call last):\n",
        "\0\0\0\0\0\0\0\0",
        "ünïcode",
    ],
)
def test_text_is_known_for_what_it_is_at_once(written: str) -> None:
    """Nobody waits for as many bytes as its first ones seem to promise."""
    frames = Frames()
    assert frames.feed(frame("start", 1) + written.encode()) == [["start", 1]]
    assert frames.broken
    assert frames.feed(frame("done", 1)) == []
