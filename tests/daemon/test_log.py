"""The daemon's log: lines for a person or as JSON, with what is bound to the attempt; no line raises."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from scheduler.config.model import LogSection
from scheduler.daemon import log
from scheduler.engine.attempt.capture import current_attempt, task_logger


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, hook = list(root.handlers), root.level, threading.excepthook
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    threading.excepthook = hook
    logging.captureWarnings(False)
    for name in ("sqlalchemy", "alembic", "scheduler.task"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_without_a_terminal() -> None:
    stream = io.StringIO()
    log.configure(LogSection(), stream)
    structlog.get_logger("myapp").info("sent", to="a@b.c", seconds=0.25)
    logging.getLogger("other").warning("%d left", 3, extra={"disk": "/srv", "color_message": "\x1b[36m%d"})
    first, second = lines(stream)
    assert list(first) == ["timestamp", "level", "logger", "event", "to", "seconds"]
    assert (first["level"], first["logger"], first["event"]) == ("info", "myapp", "sent")
    assert (second["level"], second["logger"], second["event"]) == ("warning", "other", "3 left")
    assert second["disk"] == "/srv"
    assert "color_message" not in second, "uvicorn's"
    assert first["timestamp"].endswith("Z")  # RFC 3339, UTC
    assert datetime.fromisoformat(first["timestamp"]).utcoffset() is not None


def test_both_kinds_of_line_carry_the_attempt() -> None:
    stream = io.StringIO()
    log.configure(LogSection(), stream)
    bound = {"task": 7, "kind": "EmailTask", "attempt": 2, "key": "welcome-42", "correlation": "order-42"}
    with structlog.contextvars.bound_contextvars(**bound):
        structlog.get_logger().info("by structlog")
        logging.getLogger("library").info("by logging")
    logging.getLogger("library").info("outside")
    first, second, third = lines(stream)
    assert bound.items() <= first.items()
    assert bound.items() <= second.items()
    assert not bound.keys() & third.keys()


def test_what_a_handler_writes_carries_its_attempt() -> None:
    """The engine says which attempt runs; nothing has to be bound."""
    stream = io.StringIO()
    log.configure(LogSection(), stream)
    claimed = SimpleNamespace(
        id=7,
        kind="Mail",
        attempt=2,
        key="welcome-42",
        correlation=None,
        causation="click-9",
        subject="user/7",
        message_type=None,
        sequence=0,
    )
    token = current_attempt.set(SimpleNamespace(claimed=claimed, trace=None))  # type: ignore[arg-type]
    try:
        task_logger("Mail").info("sent", to="a@b.c", kind="letter")
        logging.getLogger("library").info("connected")
        structlog.get_logger("mine").info("noted")
    finally:
        current_attempt.reset(token)
    sent, connected, noted = lines(stream)
    assert (sent["event"], sent["to"], sent["logger"]) == ("sent", "a@b.c", "scheduler.task.Mail")
    expected = {"task": 7, "kind": "Mail", "attempt": 2, "key": "welcome-42", "correlation": "7"}
    expected |= {"causation": "click-9", "subject": "user/7", "sequence": 0}
    for line in (sent, connected, noted):
        assert expected.items() <= line.items()
        assert "message_type" not in line


def test_a_thread_has_its_own_attempt() -> None:
    stream = io.StringIO()
    log.configure(LogSection(), stream)
    structlog.contextvars.bind_contextvars(task=1)

    def other() -> None:
        structlog.contextvars.bind_contextvars(task=2)
        logging.info("there")

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(10)
    logging.info("here")
    assert [line["task"] for line in lines(stream)] == [2, 1]


@pytest.mark.parametrize(
    ("setting", "terminal", "console"),
    [("auto", True, True), ("auto", False, False), ("console", False, True), ("json", True, False)],
)
def test_which_format(setting: Any, terminal: bool, console: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    log.configure(LogSection(format=setting), stream, {})
    logging.getLogger("x").info("hello")
    assert stream.getvalue().startswith("{") != console
    assert "hello" in stream.getvalue()


@pytest.mark.parametrize("format", ["json", "console"])
def test_the_journal_gets_priorities(format: Any, tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        of = os.fstat(stream.fileno())
        log.configure(LogSection(format=format, level="debug"), stream, {"JOURNAL_STREAM": f"{of.st_dev}:{of.st_ino}"})
        logger = logging.getLogger("scheduler.x")
        logger.setLevel(logging.DEBUG)
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.CRITICAL):
            logger.log(level, "hello")
        logger.error("failed", exc_info=ValueError("two\nlines"))
        stream.seek(0)
        found = stream.read().splitlines()
    assert [line[:3] for line in found[:4]] == ["<7>", "<6>", "<4>", "<2>"]
    assert {line[:3] for line in found[4:]} == {"<3>"}
    assert (len(found) > 5) == (format == "console")  # of a traceback each line has it


@pytest.mark.parametrize("journal", ["", "1:2", "nonsense"])
def test_other_streams_get_no_priorities(journal: str, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+") as stream:
        log.configure(LogSection(), stream, {"JOURNAL_STREAM": journal})
        logging.getLogger("x").error("hello")
        stream.seek(0)
        assert stream.read().startswith("{")


def test_a_person_at_a_terminal_sees_every_attempt() -> None:
    assert log.settled(LogSection(), Terminal()).attempts == "all"
    assert log.settled(LogSection(attempts="notable"), Terminal()).attempts == "notable"
    assert log.settled(LogSection(), io.StringIO()).attempts == "notable"


@pytest.mark.parametrize(
    ("environ", "colors"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours(environ: dict[str, str], colors: bool) -> None:
    stream = Terminal()
    log.configure(LogSection(), stream, environ)
    logging.getLogger("x").error("hello", exc_info=ValueError("why"))
    assert ("\x1b[" in stream.getvalue()) == colors
    assert "ValueError: why" in stream.getvalue()


def test_no_colours_without_a_terminal() -> None:
    stream = io.StringIO()
    log.configure(LogSection(format="console"), stream, {})
    logging.getLogger("x").error("hello")
    assert "\x1b[" not in stream.getvalue()


def test_levels_can_be_changed_while_it_runs() -> None:
    stream = io.StringIO()
    log.configure(LogSection(level="warning"), stream)
    mine = structlog.get_logger("mine")
    mine.info("one")
    mine.warning("two")
    log.set_level("debug")
    mine.debug("three")
    logging.getLogger("sqlalchemy.engine").info("SELECT secret")
    assert [line["event"] for line in lines(stream)] == ["two", "three"]


def test_what_is_kept_with_attempts_does_not_depend_on_what_is_written() -> None:
    kept: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    stream = io.StringIO()
    log.configure(LogSection(level="error"), stream)
    keeper = Keeper()
    logging.getLogger().addHandler(keeper)
    with structlog.contextvars.bound_contextvars(task=7):
        structlog.get_logger("mine").info("sent", to="a@b.c")
        logging.getLogger("library").info("connected")
        structlog.get_logger("mine").debug("too much")
    assert kept == ["sent to='a@b.c'", "connected"]
    assert stream.getvalue() == ""


def test_configured_twice_writes_once() -> None:
    old, new = io.StringIO(), io.StringIO()
    log.configure(LogSection(), old)
    log.configure(LogSection(), new)
    logging.info("hello")
    assert old.getvalue() == ""
    assert len(lines(new)) == 1


def test_exceptions_and_warnings_are_lines() -> None:
    stream = io.StringIO()
    log.configure(LogSection(), stream)
    try:
        raise ValueError("why\nso")
    except ValueError:
        structlog.get_logger().exception("one")
        logging.exception("two")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    one, two, three = lines(stream)
    assert "ValueError: why\nso" in one["exception"]
    assert "ValueError: why\nso" in two["exception"]
    assert "DeprecationWarning: old" in three["event"]


def test_a_thread_that_fails_is_a_line() -> None:
    stream = io.StringIO()
    log.configure(LogSection(), stream)
    failing = threading.Thread(target=lambda: 1 / 0, name="pump")
    failing.start()
    failing.join(10)
    leaving = threading.Thread(target=sys.exit)
    leaving.start()
    leaving.join(10)
    (line,) = lines(stream)
    assert line["event"] == "pump ended by an exception"
    assert "ZeroDivisionError" in line["exception"]


class Nasty:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_odd_values_do_not_stop_a_line() -> None:
    logging.getLogger().handlers.clear()  # pytest's own raise where ours must not
    stream = io.StringIO()
    log.configure(LogSection(), stream)
    endless: list[Any] = []
    endless.append(endless)
    mine = structlog.get_logger()
    mine.info("object", it=object(), when=datetime.min.replace(tzinfo=UTC), path=b"\xff")
    mine.info("surrogate \udcff", name="\udcff")
    mine.info("endless", it=endless)
    mine.info("not a number", it=float("nan"))
    logging.info("%d", "not a number")
    mine.info("nasty", it=Nasty())
    logging.info("%s", Nasty())
    logging.info("after")
    events = [line["event"] for line in lines(stream)]
    assert events[:4] == ["object", "surrogate \udcff", "endless", "not a number"]
    assert "cannot be formatted" in events[4]
    assert "%d" in events[4]
    assert events[5] == "a log line cannot be formatted (RuntimeError): 'nasty'"
    assert events[-1] == "after"


def test_a_closed_stream_is_no_error() -> None:
    stream = io.StringIO()
    log.configure(LogSection(), stream)
    stream.close()
    logging.info("lost")
    log.configure(LogSection(), stream)
    logging.info("lost")


def test_a_narrow_stream_gets_escapes() -> None:
    raw = io.BytesIO()
    log.configure(LogSection(format="console"), io.TextIOWrapper(raw, encoding="ascii"))
    logging.info("größer")
    assert b"gr\\xf6\\xdfer" in raw.getvalue()


PROGRAM = """
import logging, sys
from scheduler.daemon import log
from scheduler.config.model import LogSection
log.configure(LogSection())
sys.stdin.readline()
for n in range(3):
    logging.info("line %d", n)
print("survived")
"""


def test_a_reader_that_went_away_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        process.stderr.close()
        process.stderr = None
        out, _ = process.communicate("go\n", timeout=60)
        assert out == "survived\n"
        assert process.returncode == 0


def test_a_full_disk_loses_lines_only() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input="go\n",
            stdout=-1,
            stderr=full,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stdout == "survived\n"


def test_importing_it_does_not_import_structlog() -> None:
    code = "import sys, scheduler.daemon.log; print('structlog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "False\n"


ENDED = {
    "task": 4711,
    "kind": "billing.SendInvoice",
    "attempt": 1,
    "key": None,
    "correlation": "order-42-of-a-customer",
    "idempotency_key": "0123456789abcdef0123456789abcdef",
    "message_type": "billing.SendInvoice",
    "schema_version": 1,
    "created_at": "2026-11-26T14:20:46.247263Z",
    "outcome": "succeeded",
    "ms": 1234.5678,
}


@pytest.mark.parametrize("colors", [True, False])
def test_an_attempt_is_one_row_of_a_terminal(colors: bool) -> None:
    stream = Terminal()
    log.configure(LogSection(), stream, {"TERM": "xterm"} if colors else {"NO_COLOR": "1"})
    attempts = logging.getLogger("scheduler.engine.attempts")
    attempts.info("attempt succeeded", extra=ENDED)
    again = {"attempt": 3, "key": "a", "ms": 2.34, "outcome": "dead", "error": "bad \x1b[31mnumber"}
    attempts.error("attempt dead", extra=ENDED | again)
    first, second = [re.sub(r"\x1b\[\d*m", "", line)[10:] for line in stream.getvalue().splitlines()]
    assert first == "[info     ] succeeded billing.SendInvoice 4711, 1.2 s"
    assert second == "[error    ] dead      billing.SendInvoice 4711, attempt 3, key a, 2.3 ms: bad ·[31mnumber"
    assert len(first) + 10 <= 80
    assert ("\x1b" in stream.getvalue()) is colors


def test_a_row_of_an_attempt_is_cut_at_80_columns_in_development() -> None:
    log.configure(LogSection(format="console"), stream := io.StringIO(), {log.DEV: "1"})
    attempts = logging.getLogger("scheduler.engine.attempts")
    attempts.error("attempt dead", extra=ENDED | {"outcome": "dead", "error": "no such table " * 20})
    (row,) = stream.getvalue().splitlines()
    assert len(row) == 80
    assert row[10:].startswith("[error    ] dead      billing.SendInvoice 4711, 1.2 s: no such table")
    assert row.endswith("…")


def test_an_attempt_has_all_its_fields_where_no_person_reads() -> None:
    stream = io.StringIO()
    log.configure(LogSection(format="console"), stream)
    logging.getLogger("scheduler.engine.attempts").info("attempt succeeded", extra=ENDED)
    assert "idempotency_key=0123456789abcdef0123456789abcdef" in stream.getvalue()
    log.configure(LogSection(), stream := io.StringIO())
    logging.getLogger("scheduler.engine.attempts").info("attempt succeeded", extra=ENDED)
    (line,) = lines(stream)
    assert ENDED.items() <= line.items()
