"""What a child process says, taken apart, whatever a handler has written in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from scheduler.engine.child.protocol import MAX_MESSAGE_BYTES, FrameDecoder, frame
from scheduler.engine.processes.messages import ChildMessage, frames_of_child

PLAIN = some.none() | some.booleans() | some.integers(-(2**63), 2**63) | some.text()
VERBS = some.sampled_from(["ready", "unfit", "ask", "start", "said", "log", "decided", "done", "computed", "hooked"])
ANY = some.recursive(
    PLAIN | some.binary(max_size=8) | some.floats(),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)
WRITTEN = some.tuples(VERBS | some.text(), some.lists(ANY, max_size=6)).map(lambda one: frame(one[0], *one[1]))
MESSAGES = some.lists(some.lists(PLAIN | some.lists(PLAIN, max_size=40), min_size=1, max_size=40), max_size=5)


@given(MESSAGES, some.data())
def test_it_comes_apart_wherever_it_was_cut(messages: list[list[Any]], data: some.DataObject) -> None:
    stream, frames, found = b"".join(frame(*message) for message in messages), FrameDecoder(), []
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
        "\x10\0\0\0text",  # its first four bytes are a length that a message may have
    ],
)
def test_text_is_known_for_what_it_is_at_once(written: str) -> None:
    """The decoder does not wait for as many bytes as the first ones seem to promise."""
    frames = FrameDecoder()
    assert frames.feed(frame("start", 1) + written.encode()) == [["start", 1]]
    assert frames.broken
    assert frames.feed(frame("done", 1)) == []


@pytest.mark.parametrize(
    "written",
    [
        b"\x92\xa4said\xa2\xff\xfe",  # no UTF-8
        b"\x91" * 5000 + b"\x90",
        b"\x91\xc1",  # what msgpack never uses
    ],
)
def test_what_cannot_be_decoded_breaks_the_stream(written: bytes) -> None:
    frames = FrameDecoder()
    assert frames.feed(frame("start", 1) + len(written).to_bytes(4, "little") + written) == [["start", 1]]
    assert frames.broken


def test_a_message_that_is_too_long_is_not_waited_for() -> None:
    frames = FrameDecoder()
    assert frames.feed((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little") + b"\x90") == []
    assert frames.broken
    frames = FrameDecoder()
    assert frames.feed(MAX_MESSAGE_BYTES.to_bytes(4, "little") + b"\x90") == []
    assert not frames.broken
    assert frames.unfinished


@pytest.mark.case(76, pure=True)
@settings(max_examples=60)
@given(some.lists(some.binary(max_size=80) | WRITTEN, max_size=4))
def test_whatever_a_child_says_is_a_message_or_breaks_the_stream(written: list[bytes]) -> None:
    frames = frames_of_child()
    for data in written:
        assert all(isinstance(one, ChildMessage) for one in frames.feed(data))
    if frames.broken:
        assert frames.feed(frame("ready")) == []
