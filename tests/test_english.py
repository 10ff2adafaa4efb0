"""README, docs and help texts are plain English: short sentences with a subject, guides that address the reader.

The bounds are at the head of tests/support/english.py.
"""

from __future__ import annotations

from pathlib import Path

from scheduler.cli.root import root
from support.english import help_texts, is_headless, measure, sentences, worst

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {page: page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md") if page.parent.name != "decisions"}
GUIDES = [text for page, text in PAGES.items() if page.parent.name == "guides"]


def test_sentences_are_found_without_code_tables_and_headings() -> None:
    text = (
        "# A head of many words\n\nSee [the page](x.md) for it all. What is due\nruns now.\n\n```sh\na b c d e\n```\n"
    )
    text += "| a | table of many words |\n\n- An item is a sentence.\n- So is `another one` here. Too short.\n"
    found = list(sentences(text))
    assert found == [
        "See the page for it all.",
        "What is due runs now.",
        "An item is a sentence.",
        "So is `another one` here.",
    ]
    assert [is_headless(sentence) for sentence in found] == [False, True, False, False]


def test_each_bound_is_a_fault_when_it_is_broken() -> None:
    long = "word " * 31
    assert len(measure([long]).faults()) == 2
    assert len(measure(["What is due runs now."]).faults()) == 1
    assert len(measure(["The tasks run now."]).faults(guide=True)) == 1
    assert measure(["You run your tasks."]).faults(guide=True) == []
    assert worst([long, "What is due runs now."])[0] == "What is due runs now."


def test_docs_are_plain_english() -> None:
    assert measure(PAGES.values()).faults() == [], worst(PAGES.values())


def test_each_page_is_plain_english() -> None:
    faults = {
        str(page.relative_to(ROOT)): (found, worst([text]))
        for page, text in PAGES.items()
        if (found := measure([text]).faults())
    }
    assert faults == {}


def test_guides_speak_to_the_reader() -> None:
    assert measure(GUIDES).faults(guide=True) == [], worst(GUIDES)


def test_the_front_page_is_plain_english() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert measure([text]).faults() == [], worst([text])


def test_help_texts_are_plain_english() -> None:
    texts = list(help_texts(root))
    assert len(texts) > 200
    assert measure(texts).faults() == [], worst(texts)
