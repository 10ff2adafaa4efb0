"""A terminal obeys nothing that a task says, whichever command or log line shows it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

import scheduler.cli
from scheduler import Context, PermanentError, task
from scheduler.config.model import LogSection
from scheduler.daemon import log
from scheduler.model.texts import printable, printable_json
from support.bench import Bench
from support.commands import CHANGING, READING
from support.databases import Database, one_database

from .conftest import Ctl

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\x08\u202eabc\u2066\u2028\u200f\x85"


def obeyed(text: str) -> list[str]:
    return sorted({c for c in text if not c.isprintable() and c not in "\n\t"})


@task
def hostile(ctx: Context) -> None:
    ctx.log.info(f"log {HOSTILE}", field=HOSTILE)
    ctx.report_progress(50, f"progress {HOSTILE}")
    raise PermanentError(f"error {HOSTILE}")


@task
def pleased(ctx: Context) -> str:
    return f"result {HOSTILE}"


@pytest.fixture
def hostiles(database: Database, live: Bench) -> Bench:
    jobs = live.jobs
    jobs.register(hostile)
    jobs.register(pleased)
    for one in (hostile, pleased):
        made = jobs.task(one).key(f"key {HOSTILE}").correlation(f"correlation {HOSTILE}").subject(f"subject {HOSTILE}")
        first = made.headers({"trace": f"header {HOSTILE}"}).schedule()
    jobs.task(pleased).depend_on(first).schedule()
    jobs.task(pleased).every(3600).key("nightly").schedule()
    live.drain()
    jobs.emit_event(f"event {HOSTILE}", f"payload {HOSTILE}")
    # Names that nothing lets in today, as another program may write them.
    live.execute(f"UPDATE schedd_tasks SET queue = 'q{HOSTILE}' WHERE id = 2")
    live.execute(f"UPDATE schedd_workers SET host = 'h{HOSTILE}'")
    return live


@pytest.mark.case(84)
@one_database
def test_no_command_lets_a_terminal_obey(hostiles: Bench, ctl: Ctl, terminal: Callable[[str], str]) -> None:
    seen = ""
    for line in READING:
        result = ctl(*line.split())
        assert not isinstance(result.exception, Exception), line
        assert obeyed(result.output) == [], f"{line}, in a pipe"
        printed = terminal(f"{line} -o json")
        assert obeyed(printed) == [], f"{line} -o json, on a terminal"
        seen += printed
    for style in ("tree", "dot", "mermaid"):
        assert obeyed(terminal(f"graph 1 --format {style}")) == []
    for what in ("key", "correlation", "subject", "header", "log", "error", "result", "event", "progress"):
        assert f"{what} " in seen, what
    for line in CHANGING:
        assert obeyed(ctl(*line.split()).output) == [], line


@pytest.mark.case(84)
def test_logs_can_be_had_as_they_were_written(hostiles: Bench, ctl: Ctl) -> None:
    assert "log \x1b]0;owned" in ctl("logs", 1, "--raw").stdout
    assert "log ·]0;owned" in ctl("logs", 1).stdout
    assert HOSTILE in json.loads(ctl("logs", 1, "-o", "jsonl").stdout.splitlines()[0])["text"]


@pytest.fixture
def root_logger() -> Iterator[None]:
    logger = logging.getLogger()
    before, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:], logger.level = before, level
    structlog.reset_defaults()


class Rude:
    def __repr__(self) -> str:
        return HOSTILE


@pytest.mark.case(84, pure=True)
@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("form", ["console", "json"])
def test_no_log_line_lets_a_terminal_obey(form: Any) -> None:
    stream = io.StringIO()
    log.configure(LogSection(format=form), stream, {"NO_COLOR": "1"})
    logger = logging.getLogger(f"mine{HOSTILE}")
    logger.info("by logging %s", HOSTILE, extra={"field": HOSTILE, "rude": Rude(), f"name{HOSTILE}": 1})
    structlog.get_logger().info(f"by structlog {HOSTILE}", field=HOSTILE, nested={"a": [HOSTILE]}, rude=[Rude()])
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        logger.exception("it failed", stack_info=True)
        logger.info("again", extra={"why": error})
    assert len(stream.getvalue().splitlines()) >= 4
    assert obeyed(stream.getvalue()) == []
    for text in ("by logging", "by structlog", "it failed", "again"):
        assert text in stream.getvalue()


def test_every_line_of_a_command_goes_one_way() -> None:
    """click's own echo is for what schedctl itself says, coloured, and for --raw."""
    for module in Path(scheduler.cli.__file__).parent.glob("*.py"):
        if module.name not in ("echo.py", "output.py", "complete.py", "follow.py"):
            source = module.read_text(encoding="utf-8")
            assert "click.echo(" not in source, module.name


@pytest.mark.parametrize("text", [HOSTILE, "plain", "two\nlines\tand a tab", "Grüße, 日本語 and 🙂"])
def test_what_is_printable_is_kept(text: str) -> None:
    assert obeyed(printable(text)) == []
    assert json.loads(printable_json(json.dumps(text, ensure_ascii=False))) == text
    if not obeyed(text):
        assert printable(text) == text
