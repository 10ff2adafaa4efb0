"""What a handler logs: ``ctx.log``, and the newest text, which is kept with the attempt."""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, cast

from scheduler.model import running

if TYPE_CHECKING:
    from contextvars import ContextVar

    from scheduler.engine.attempt.attempt import Attempt

MAX_LOG = 64 * 1024  # characters of one attempt
TASK_LOGGER = "scheduler.task"
ATTEMPTS_LOGGER = "scheduler.engine.attempts"  # how each attempt has ended
current_attempt = cast("ContextVar[Attempt | None]", running.current_attempt)


class Tail:
    """The last :data:`MAX_LOG` characters of the added text; it drops whole pieces."""

    __slots__ = ("_pieces", "_size", "added", "dropped")

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._size = 0
        self.added = 0  # pieces so far: shows whether there is more than was last stored
        self.dropped = False

    def add(self, text: str) -> None:
        if len(text) > MAX_LOG:
            text, self.dropped = text[-MAX_LOG:], True
        self._pieces.append(text)
        self.added += 1
        self._size += len(text)
        while self._size > MAX_LOG:
            self._size -= len(self._pieces.popleft())
            self.dropped = True

    def text(self) -> str:
        kept = "".join(list(self._pieces)).replace("\x00", "�").encode("utf-8", "replace").decode()
        return f"[… earlier output dropped]\n{kept}" if self.dropped else kept


class CaptureHandler(logging.Handler):
    """Adds each record made inside an attempt to that attempt's tail."""

    def __init__(self) -> None:
        super().__init__()
        formatter = logging.Formatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
        )
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        attempt = current_attempt.get()
        if attempt is None or record.name.startswith("scheduler.engine"):
            return
        try:
            attempt.capture(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


_attached: weakref.WeakSet[Capture] = weakref.WeakSet()


def attach_again() -> None:
    """Attach the handlers of what captures anew: something has set up logging."""
    for one in list(_attached):
        one.attach()


class Capture:
    """Attaches the handler. ``everything``: to the root logger, not only to ``scheduler.task``."""

    def __init__(self, *, everything: bool) -> None:
        self._everything = everything
        self._handler = CaptureHandler()

    def attach(self) -> None:
        logger = logging.getLogger() if self._everything else logging.getLogger(TASK_LOGGER)
        if self._handler not in logger.handlers:
            logger.addHandler(self._handler)
        _attached.add(self)
        for name, one in list(logging.root.manager.loggerDict.items()):
            if name.startswith("scheduler.") and isinstance(one, logging.Logger):
                one.disabled = False  # by a dictConfig, which disables what it does not name
        task_logger = logging.getLogger(TASK_LOGGER)
        if task_logger.level == logging.NOTSET:
            task_logger.setLevel(logging.INFO)

    def detach(self) -> None:
        _attached.discard(self)
        for logger in (logging.getLogger(), logging.getLogger(TASK_LOGGER)):
            logger.removeHandler(self._handler)

    def __enter__(self) -> None:
        self.attach()

    def __exit__(self, *exc: object) -> None:
        self.detach()


def task_logger(kind: str) -> Any:
    """``ctx.log``: a bound logger of structlog over the logger ``scheduler.task.<kind>``."""
    import structlog

    return structlog.wrap_logger(
        logging.getLogger(f"{TASK_LOGGER}.{kind}"),
        processors=[_render],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
    )


def through_logging() -> None:
    """Send all of structlog through ``logging``, as the daemon does in its own process."""
    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            _render,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _render(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Render ``log.info("sent", to=x)`` as the message ``sent to=x``, with the fields as extra."""
    exc_info = event.pop("exc_info", None)
    message = str(event.pop("event", ""))
    fields = " ".join(f"{name}={value!r}" for name, value in event.items())
    extra: dict[str, Any] = {"fields": dict(event)}
    attempt = current_attempt.get()
    if attempt is not None and attempt.trace is not None:
        extra |= attempt.trace.log_fields
    return (f"{message} {fields}".strip(),), {"extra": extra, "exc_info": exc_info}
