"""Measures the English of pages and help texts: the length of sentences, their subjects, and whom they address."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import click

WORDS = 17.0  # words a sentence, at most
LONG = 30  # a sentence with more words is long
LONG_SHARE = 0.10  # of all sentences, at most
HEADLESS_SHARE = 0.01  # of all sentences, at most: those without a noun as their subject
YOU_SHARE = 0.10  # of the sentences of guides, at least: those that address the reader

SHORTEST = 4  # fewer words are a label, no sentence
_LEFT_OUT = re.compile(r"```.*?```|<!--.*?-->|^[ \t]*\|.*?$|^#.*?$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_BLOCK = re.compile(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s+")
_ITEM = re.compile(r"\A\s*(?:[-*]|\d+\.)\s+")
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*])")
_HEADLESS = re.compile(r"[*_]*(What|Whatever|Who|Whoever|Which|That which|Those (of|that|who))\b(?!.*\?)")
_YOU = re.compile(r"\byour?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Measure:
    """The figures of some sentences."""

    sentences: int
    words: float
    long: float
    headless: float
    you: float

    def faults(self, *, guide: bool = False) -> list[str]:
        """The bounds that it breaks."""
        found = []
        if self.words > WORDS:
            found.append(f"{self.words:.1f} words a sentence, {WORDS:g} at most")
        if self.long > LONG_SHARE:
            found.append(f"{self.long:.1%} have more than {LONG} words, {LONG_SHARE:.0%} at most")
        if self.headless > HEADLESS_SHARE:
            found.append(f"{self.headless:.1%} have no noun as their subject, {HEADLESS_SHARE:.0%} at most")
        if guide and self.you < YOU_SHARE:
            found.append(f'{self.you:.1%} say "you", {YOU_SHARE:.0%} at least')
        return found


def sentences(text: str) -> Iterator[str]:
    """The sentences of a Markdown text, without code, tables, headings and comments."""
    prose = _LINK.sub(r"\1", _LEFT_OUT.sub("", text))
    for block in _BLOCK.split(prose):
        for sentence in _END.split(_ITEM.sub("", block)):
            if len(sentence.split()) >= SHORTEST:
                yield " ".join(sentence.split())


def is_headless(sentence: str) -> bool:
    """Whether a relative clause stands where the subject belongs. A question is none."""
    return _HEADLESS.match(sentence) is not None


def measure(texts: Iterable[str]) -> Measure:
    """The figures of all sentences of these texts."""
    found = [sentence for text in texts for sentence in sentences(text)]
    total = max(1, len(found))
    lengths = [len(sentence.split()) for sentence in found]
    return Measure(
        sentences=len(found),
        words=sum(lengths) / total,
        long=sum(length > LONG for length in lengths) / total,
        headless=sum(map(is_headless, found)) / total,
        you=sum(_YOU.search(sentence) is not None for sentence in found) / total,
    )


def worst(texts: Iterable[str], many: int = 5) -> list[str]:
    """Sentences to mend first: those without a subject, then the longest."""
    found = [sentence for text in texts for sentence in sentences(text)]
    bad = [s for s in found if is_headless(s) or len(s.split()) > LONG]
    return sorted(bad, key=lambda s: (not is_headless(s), -len(s.split())))[:many]


def help_texts(command: click.Command, ctx: click.Context | None = None) -> Iterator[str]:
    """The help of a command, of its options, and of all commands below it."""
    ctx = ctx or click.Context(command, **command.context_settings)
    yield command.help or ""
    yield from (option.help or "" for option in command.get_params(ctx) if isinstance(option, click.Option))
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from help_texts(below, click.Context(below, parent=ctx))
