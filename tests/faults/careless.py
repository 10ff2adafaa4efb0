"""Task types that change their process, and tell how they found it. Imported by the tests and by the children."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import faulthandler
import gc
import locale
import logging
import logging.config
import os
import resource
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import structlog

from scheduler import AsyncContext, Context, Task


def mode_of_a_new_file() -> int:
    """What the umask leaves of 0o666."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "new")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        return stat.S_IMODE(path.stat().st_mode)


def where() -> list[Any]:
    return [os.getcwd(), mode_of_a_new_file()]


def move(to: str) -> list[Any]:
    """How it was before."""
    found = where()
    os.chdir(to)
    os.umask(0o777)
    return found


class Where(Task):
    def run(self, ctx: Context) -> list[Any]:
        return where()


class Move(Task):
    to: str
    stay: float = 0.0

    def run(self, ctx: Context) -> list[Any]:
        found = move(self.to)
        time.sleep(self.stay)
        return [*found, os.getcwd()]


class AMove(Task):
    """In a coroutine, or in threads of one."""

    to: str
    how: str = "here"

    async def run(self, ctx: AsyncContext) -> list[Any]:
        if self.how == "thread":
            return await asyncio.to_thread(move, self.to)
        if self.how == "step":
            return await ctx.step("move", move, self.to)
        return move(self.to)


class MoveInside(Task, isolation="process"):
    to: str

    def run(self, ctx: Context) -> list[Any]:
        return move(self.to)


class MoveByFunction(Task):
    to: str

    def run(self, ctx: Context) -> list[Any]:
        return ctx.cpu(move, self.to)


def look() -> dict[str, Any]:
    """What of this process a handler can change."""
    return {
        "environment": dict(os.environ),
        "time zone": time.strftime("%Z", time.localtime(0)),
        "path": list(sys.path),
        "streams": [type(one).__name__ for one in (sys.stdout, sys.stderr)],
        "hooks": [one.__qualname__ for one in (sys.excepthook, threading.excepthook)],
        "signals": [str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGUSR2, signal.SIGCHLD)],
        "profiling": [str(signal.getsignal(one)) for one in (signal.SIGPROF, signal.SIGVTALRM)],
        "timers": [signal.getitimer(one) for one in (signal.ITIMER_REAL, signal.ITIMER_PROF, signal.ITIMER_VIRTUAL)],
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "cores": sorted(os.sched_getaffinity(0)),
        "warnings": len(warnings.filters),
        "locale": locale.setlocale(locale.LC_ALL),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "timeout": socket.getdefaulttimeout(),
        "interpreter": [gc.isenabled(), sys.getrecursionlimit()],
        "logging": [logging.root.level, logging.getLogger("shop").disabled, logging.root.manager.disable],
    }


def disturb() -> None:
    os.environ["CARELESS"] = "1"
    os.environ["TZ"] = "Asia/Tokyo"
    del os.environ["PATH"]
    time.tzset()
    sys.path.insert(0, "/nowhere")
    sys.stdout = sys.stderr = open(os.devnull, "w")  # type: ignore[assignment]  # noqa: SIM115
    sys.excepthook = threading.excepthook = print  # type: ignore[assignment]
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGCHLD, signal.SIGPROF, signal.SIGVTALRM):
        signal.signal(one, signal.SIG_IGN)
    for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF, signal.ITIMER_VIRTUAL):
        signal.setitimer(timer, 3600.0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    faulthandler.dump_traceback_later(1.5, exit=True)
    warnings.simplefilter("error")
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    socket.setdefaulttimeout(0.001)
    gc.disable()
    sys.setrecursionlimit(333)
    configure_logging()
    logging.disable(logging.CRITICAL)


def configure_logging() -> None:
    """As many a project does in its first lines: no present logger goes on."""
    logging.config.dictConfig(
        {
            "version": 1,
            "formatters": {"bare": {"format": "bare %(message)s"}},
            "handlers": {"bare": {"class": "logging.StreamHandler", "formatter": "bare", "level": "CRITICAL"}},
            "root": {"handlers": ["bare"], "level": "CRITICAL"},
        }
    )


class Look(Task, isolation="process"):
    def run(self, ctx: Context) -> list[Any]:
        logging.getLogger("shop").warning("seen by the next one")
        ctx.log.info("and this")
        return [os.getpid(), look()]


class Disturb(Task, isolation="process"):
    where: str = "handler"

    def run(self, ctx: Context) -> int:
        disturb() if self.where == "handler" else ctx.cpu(disturb)
        return os.getpid()


class DisturbByFunction(Task):
    def run(self, ctx: Context) -> None:
        ctx.cpu(disturb)


user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
CLEAN = ["nobody", {}, 28]


def bind() -> list[Any]:
    """What the last one has left in this thread."""
    found: list[Any] = [user.get(), dict(structlog.contextvars.get_contextvars()), decimal.getcontext().prec]
    user.set("alice")
    structlog.contextvars.bind_contextvars(customer="alice")
    decimal.getcontext().prec = 3
    return found


class Bind(Task):
    how: str = "here"

    def run(self, ctx: Context) -> Any:
        return ctx.cpu(bind) if self.how == "cpu" else ctx.step("bind", bind) if self.how == "step" else bind()


class ABind(Task):
    how: str = "here"

    async def run(self, ctx: AsyncContext) -> Any:
        if self.how == "step":
            return await ctx.step("bind", bind)
        if self.how == "executor":
            return await asyncio.get_running_loop().run_in_executor(None, bind)
        return await asyncio.to_thread(bind) if self.how == "thread" else bind()


class BindInside(Task, isolation="process"):
    def run(self, ctx: Context) -> Any:
        return bind()


class ABindInside(Task, isolation="process"):
    async def run(self, ctx: AsyncContext) -> Any:
        return bind()


class BindInHook(Task):
    def run(self, ctx: Context) -> Any:
        raise ValueError("no")

    def on_failed(self, ctx: Context, error: BaseException) -> None:
        ctx.capture(f"{bind()}\n")


class Fails(Task):
    def run(self, ctx: Context) -> None:
        logging.getLogger("shop").warning("still captured")
        raise ValueError("seen in the log")


class SetsUpLogging(Task):
    how: str

    def run(self, ctx: Context) -> None:
        if self.how == "dictConfig":
            configure_logging()
        elif self.how == "basicConfig":
            logging.basicConfig(level=logging.CRITICAL, force=True)
        elif self.how == "disable":
            logging.disable(logging.CRITICAL)
            logging.config.dictConfig({"version": 1})
        else:
            logging.getLogger("scheduler").disabled = True
            logging.basicConfig()
