"""A log that is followed on its page."""

from __future__ import annotations

import asyncio
import json

import pytest

from scheduler.console.pages import logs


def test_a_log_that_has_grown_too_long_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning is dropped then, so it is never longer than it was."""
    a, b, c, d, e, f = (letter * 250 + "\n" for letter in "abcdef")
    texts = [a + b + c, "[…]\n" + b + c + d, "[…]\n" + c + d + e + "f", "[…]\n" + d + e + f + "g"]
    seen = iter([*((False, [(1, text)]) for text in texts[:3]), (True, [(1, texts[3])])])
    monkeypatch.setattr(logs, "_read", lambda *_: next(seen))
    monkeypatch.setattr(logs, "LOOK_EVERY", 0.0)

    async def followed(at: tuple[int, int]) -> list[str]:
        sent = [one async for one in logs._lines(None, 1, at, "ada")]  # type: ignore[arg-type]  # it is not asked
        return [json.loads(one.partition("data: ")[2])["text"] for one in sent if "event: lines" in one]

    assert asyncio.run(followed((0, 0))) == [a + b + c, d, e, f + "g"]
    seen = iter([(False, [(1, texts[0] + d)]), (True, [(1, texts[3])])])
    assert asyncio.run(followed((1, len(texts[0])))) == [d, e + f + "g"], "by another connection before"
