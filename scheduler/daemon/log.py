"""The daemon's log on stderr: structlog over the standard ``logging``, as text or as JSON lines.

Each line that an attempt's code writes, through structlog or plain ``logging``, carries its task, kind,
attempt, key and correlation, and whatever is bound with ``structlog.contextvars``.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from scheduler.config.model import LogSection
from scheduler.daemon.log_guard import GUARD
from scheduler.engine.attempt.capture import ATTEMPTS_LOGGER, TASK_LOGGER, current_attempt
from scheduler.model.running import LOG_FIELDS, log_fields
from scheduler.model.texts import printable, printable_json
from scheduler.nonblocking import EXIT_SECONDS, writer_of

if TYPE_CHECKING:
    from structlog.typing import Processor

# At "info" alembic tells of every connection, and SQLAlchemy asked for "info" or less writes every statement,
# with its parameters, which costs more than running it: they stay at "warning" whatever the level.
_QUIET = {"sqlalchemy": logging.WARNING, "alembic": logging.WARNING}
_FIRST = ("timestamp", "level", "logger", "event")
_ON_EVERY_LINE = frozenset({*_FIRST, *LOG_FIELDS, "trace_id", "span_id", "exc_info"})
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG_PRIORITY = 7
DEV = "SCHEDD_DEV"  # set by `schedd --dev`: a person reads, whether at a terminal or not
DEV_WIDTH = 80
ATTEMPTS = "scheduler.engine.attempts"  # the logger of lines about the ends of attempts


def configure(settings: LogSection, stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Send what structlog and ``logging`` write to ``stream`` (default: stderr). May be called again."""
    import structlog  # a tenth of a second, which schedctl does not want to pay
    from structlog.stdlib import (
        BoundLogger,
        ExtraAdder,
        LoggerFactory,
        PositionalArgumentsFormatter,
        add_log_level,
        add_logger_name,
        filter_by_level,
    )
    from structlog.stdlib import ProcessorFormatter as Formatter

    target = stream if stream is not None else sys.stderr
    handler = _JournalHandler(target) if is_journal(target, environ) else _Handler(target)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _add_attempt,
        add_logger_name,
        add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[filter_by_level, *shared, PositionalArgumentsFormatter(), _wrap],
        logger_factory=LoggerFactory(),
        wrapper_class=BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler.setFormatter(
        Formatter(
            processors=[Formatter.remove_processors_meta, *_renderers(settings, target, environ)],
            foreign_pre_chain=[*shared, ExtraAdder(), _unfold],
        )
    )
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_level(settings.level)
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    GUARD.keep(handler, {name: logging.getLogger(name).level for name in ("", TASK_LOGGER, *_QUIET)})


def settled(settings: LogSection, stream: TextIO | None = None) -> LogSection:
    """The settings with ``attempts`` decided: a person at a terminal sees every attempt."""
    if settings.attempts != "auto":
        return settings
    watched = is_terminal(stream if stream is not None else sys.stderr)
    return msgspec.structs.replace(settings, attempts="all" if watched else "notable")


def set_level(level: str) -> None:
    """Set the lowest level that is written: debug, info, warning, error or critical.

    Attempts still record their lines from info on, since those are kept with the attempt.
    """
    least = getattr(logging, level.upper())
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, _Handler):
            handler.setLevel(least)
    for kept in (root, logging.getLogger(TASK_LOGGER)):
        kept.setLevel(min(least, logging.INFO))
    for name, quiet in _QUIET.items():
        logging.getLogger(name).setLevel(quiet)


class _Event(dict[str, Any]):
    """A structlog event on its way through ``logging``; other handlers can read it as text."""

    def __str__(self) -> str:
        fields = [f"{name}={value!r}" for name, value in self.items() if name not in _ON_EVERY_LINE]
        return " ".join([str(self.get("event", "")), *fields])


def _wrap(logger: Any, method: str, event: MutableMapping[str, Any]) -> tuple[tuple[_Event], dict[str, Any]]:
    from structlog.stdlib import ProcessorFormatter

    args, kwargs = ProcessorFormatter.wrap_for_formatter(logger, method, event)
    return (_Event(args[0]),), kwargs


def _renderers(settings: LogSection, stream: TextIO, environ: Mapping[str, str]) -> list[Processor]:
    import structlog

    terminal = is_terminal(stream)
    if settings.format == "console" or (settings.format == "auto" and terminal):
        colors = terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        shown = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_plain_traceback)
        width = _width(stream) if terminal else DEV_WIDTH if DEV in environ else None
        return [_printable, _OneRow(shown, colors, width) if terminal or DEV in environ else shown]
    return [structlog.processors.format_exc_info, _to_json]


class _OneRow:
    """Renders the line about an attempt's end in one row of a terminal, others as ``shown`` does; without the date.

    ``width``: columns at which the row is cut; None: it is not.

    The rest of its fields is in ``schedctl show``, and in a log that is not a terminal's.
    """

    def __init__(self, shown: Processor, colors: bool, width: int | None = None) -> None:
        import structlog

        self._shown, self._width = shown, width
        self._styles = structlog.dev.ConsoleRenderer.get_default_level_styles(colors)
        self._reset = structlog.dev.RESET_ALL if colors else ""

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        time = event["timestamp"] = f"{str(event.get('timestamp', ''))[11:19]}Z"
        if event.get("logger") != ATTEMPTS or "outcome" not in event or "task" not in event:
            return self._shown(logger, method, event)
        level = str(event.get("level", ""))
        row = f"{event['outcome']:<9} {event.get('kind')} {event['task']}"
        if event.get("attempt", 1) != 1:
            row += f", attempt {event['attempt']}"
        if event.get("key") is not None:
            row += f", key {event['key']}"
        if isinstance(event.get("ms"), (int, float)):
            row += f", {_lasting(event['ms'])}"
        if event.get("error") is not None:
            row += f": {event['error']}"
        left = None if self._width is None else self._width - len(f"{time} [{level:<9}] ")
        if left is not None and len(row) > left:
            row = f"{row[: left - 1]}…"
        return f"{time} [{self._styles.get(level, '')}{level:<9}{self._reset}] {row}"


def _width(stream: TextIO) -> int | None:
    """The columns of a terminal, None if they are not known."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _lasting(milliseconds: float) -> str:
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _printable(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape the characters of a line that a terminal would obey."""
    return {printable(str(name)): value if name == "exc_info" else _clean(value) for name, value in event.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = repr(value)
    return value if text.isprintable() else printable(text)


def _plain_traceback(stream: TextIO, exc_info: Any) -> None:
    """Format a traceback with structlog's plain formatter, even if rich is installed."""
    import structlog

    made = io.StringIO()
    structlog.dev.plain_traceback(made, exc_info)
    stream.write(printable(made.getvalue()))


def is_terminal(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal; False for a closed one."""
    try:
        return stream.isatty()
    except (OSError, ValueError):
        return False


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether systemd's journal reads ``stream``: ``$JOURNAL_STREAM`` names its device and inode."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _add_attempt(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the attempt that writes this line. Done for each line, so that silent attempts cost nothing."""
    attempt = current_attempt.get()
    if attempt is not None:
        for name, value in log_fields(attempt.claimed).items():
            event.setdefault(name, value)
        for name, value in () if attempt.trace is None else attempt.trace.log_fields.items():
            event.setdefault(name, value)
    return event


def _unfold(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Turn the ``fields`` of a ``ctx.log`` line, which its text contains too, into fields of the event.

    The line of an attempt's end has all in fields, too.
    """
    # The text and the time again, from the formatter of another handler; the text again, coloured by uvicorn.
    for name in ("message", "asctime", "color_message"):
        event.pop(name, None)
    if event.get("logger") == ATTEMPTS_LOGGER and "outcome" in event:
        event["event"] = f"attempt {event['outcome']}"
    fields = event.get("fields")
    if isinstance(fields, dict) and str(event.get("logger", "")).startswith(TASK_LOGGER):
        del event["fields"]
        shown = " ".join(f"{name}={value!r}" for name, value in fields.items())
        event["event"] = str(event["event"]).removesuffix(shown).rstrip()
        for name, value in fields.items():
            event.setdefault(name, value)
    return event


def _to_json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    """Write one line of JSON, with the fields that every line has first."""
    line = {name: event[name] for name in _FIRST if name in event}
    line.update(event)
    try:
        return printable_json(msgspec.json.encode(line, enc_hook=repr).decode())
    except (TypeError, ValueError, RecursionError):  # odd keys, lone surrogates, a value that contains itself
        texts = {str(key): value if isinstance(value, str) else repr(value) for key, value in line.items()}
        return json.dumps(texts)


class _Handler(logging.Handler):
    """Writes lines to a stream. It never raises, and never waits for a reader: better to lose a line than the attempt
    that wrote it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self._writer = writer_of(stream)
        if self._writer is not None:
            self._writer.note = self._note

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # such as a closed stream
            self._write(self._line(record) + "\n")

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:  # arguments that do not fit the text, a value whose repr fails
            event = record.msg.get("event") if isinstance(record.msg, dict) else record.msg
            text = f"a log line cannot be formatted ({type(error).__name__}): {event!r}"
            fields = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
            return self.format(logging.makeLogRecord(fields | {"msg": text}))

    def _write(self, line: str) -> None:
        if self._writer is not None:
            self._writer.write(line.encode(self.stream.encoding or "utf-8", "backslashreplace"))
            return
        try:
            self.stream.write(line)
        except UnicodeEncodeError:
            self.stream.write(line.encode("ascii", "backslashreplace").decode())
        self.stream.flush()

    def _note(self, dropped: int) -> bytes:
        """The line that says how many lines are missing."""
        fields = {"name": "scheduler.daemon", "levelno": logging.WARNING, "levelname": "WARNING", "dropped": dropped}
        text = "nothing has read this log for a while: lines were dropped"
        return (self._line(logging.makeLogRecord({**fields, "msg": text})) + "\n").encode("utf-8", "backslashreplace")

    def flush(self) -> None:
        """Wait for a reader, but not for one that stands still."""
        if self._writer is not None:
            self._writer.flush(EXIT_SECONDS)


class _JournalHandler(_Handler):
    """Puts syslog's priority in front of each line, which the journal takes off again (see sd-daemon(3))."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_priority(record.levelno)}>"
        return prefix + super().format(record).replace("\n", f"\n{prefix}")


def _priority(level: int) -> int:
    return next((priority for least, priority in _PRIORITIES if level >= least), _DEBUG_PRIORITY)


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    """Log an exception that ended a thread."""
    if args.exc_type is SystemExit:
        return
    name = args.thread.name if args.thread is not None else "a thread"
    error = args.exc_value if args.exc_value is not None else args.exc_type()
    logging.getLogger("scheduler").error("%s ended by an exception", name, exc_info=error)
