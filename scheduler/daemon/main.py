"""The entry point of ``schedd``: its command line, and the set-up before a Scheduler runs."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec

from scheduler import interpreter
from scheduler.config import user_modules
from scheduler.config.load import load
from scheduler.config.model import Config
from scheduler.config.paths import settled
from scheduler.config.task_modules import TaskModules, find_state, make_scheduler
from scheduler.daemon import log
from scheduler.daemon.bounded_run import BoundedRun, add_options
from scheduler.daemon.companions import AlertCompanion, Companion, MessageCompanion
from scheduler.daemon.sd_notify import SystemdNotifier
from scheduler.daemon.signals import Signals
from scheduler.daemon.supervisor import FAILED, OK, UNREACHABLE, DaemonExit, Service, Supervisor
from scheduler.engine.attempt import own_directory
from scheduler.engine.child import cgroups
from scheduler.errors import ConfigError, SchedulerError, StoreUnavailableError
from scheduler.model.redact import shown_url
from scheduler.model.texts import printable
from scheduler.nonblocking import say, unblocked_output
from scheduler.system.signals import HANDLED, ignore_hangup, show_stacks
from scheduler.telemetry import prometheus

USAGE, INTERRUPTED = 2, 130
NO_ROOM = "no thread can be started; raise ulimit -v and -u, or MemoryMax= and TasksMax= of the service"
EXIT_TIMEOUT = 3.0  # seconds that threads and processes of handlers may delay the exit

logger = logging.getLogger("scheduler.daemon")

Factory = Callable[[Config], Service]


def build(config: Config) -> Service:
    """Make the Scheduler that ``config`` describes. Raises ConfigError."""
    from scheduler.app import Scheduler  # brings SQLAlchemy: not for --version, --check or a mistaken setting

    # capture_root: whatever a handler writes with logging is kept with its attempt, not only ctx.log
    return make_scheduler(config, Scheduler, capture_root=True)


def serve(config: Config, factory: Factory, bounds: BoundedRun, held: int | None = None) -> DaemonExit:
    """Run the daemon with this configuration until a signal to stop, or until ``bounds`` end it.

    ``held``: the descriptor of the process that says when to begin. Raises SchedulerError.
    """
    if config.metrics.listen is not None:
        prometheus.require("[metrics] listen")
    with unblocked_output():
        return _serve(config, factory, bounds, held)


def _serve(config: Config, factory: Factory, bounds: BoundedRun, held: int | None) -> DaemonExit:
    notifier = SystemdNotifier.take()
    config = settled(config)
    config = msgspec.structs.replace(config, log=log.settled(config.log))
    log.configure(config.log)
    cgroups.set_up()
    companions = make_companions(config)
    service = factory(config)
    companions.append(MessageCompanion(config, service))
    companions += make_executor_service(config, service)
    loader = TaskModules(service)
    kinds = loader.register(config)
    if held is not None:
        from scheduler.daemon.reloading import HeldStart

        HeldStart(held).hold(loader)
    logger.log(
        logging.INFO if kinds else logging.WARNING,
        "schedd %s starts" if kinds else "schedd %s starts without any task type: see [tasks] modules and builtin",
        version(),
        extra={"store": shown_url(config.store.url), "file": config.file, "kinds": kinds},
    )
    for path in user_modules.hidden(config.tasks.path):
        logger.warning("%s", user_modules.advice(path))
    for module in loader.idle:
        logger.warning("module %s defines no task type and has no setup()", module)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which processes get that tasks fork
    with Signals(*HANDLED) as signals:
        supervisor = Supervisor(config, service, loader, notifier, signals, companions, bounds)
        with _monitoring(config, supervisor):
            return supervisor.run()


def make_companions(config: Config) -> list[Companion]:
    """What the configuration wants to run beside the Scheduler. Raises ConfigError."""
    found: list[Companion] = [AlertCompanion(config)]
    if config.console.listen is not None:
        from scheduler.daemon.console_process import ConsoleProcess

        found.append(ConsoleProcess(config))
    return found


def make_executor_service(config: Config, service: Service) -> list[Companion]:
    """What the configuration's executors and its gateway need. Raises ConfigError."""
    if not config.executors and config.gateway.listen is None:
        return []
    from scheduler.app import Scheduler
    from scheduler.executors.service import ExecutorService

    assert isinstance(service, Scheduler)
    return [ExecutorService(config, service)]


def _monitoring(config: Config, supervisor: Supervisor) -> contextlib.AbstractContextManager[None]:
    if config.metrics.listen is None:
        return contextlib.nullcontext()
    from scheduler.daemon.listener import listening  # brings http.server

    return listening(config.metrics.listen, lambda: supervisor.engine)


def check(config: Config) -> str:
    """Import the task modules and check their types without touching the store. Raises ConfigError."""
    from scheduler.model.registry import Registry

    class Checker:
        registry = Registry()

        def register(self, task_type: Any) -> None:
            self.registry.add(task_type)

        def starting(self) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

    if config.metrics.listen is not None:
        prometheus.require("[metrics] listen")
    kinds = TaskModules(Checker()).register(config)
    find_state(config)
    make_companions(config)
    if config.sources or config.sinks:
        from scheduler.messages.service import check_ends

        check_ends(config)
    if config.executors:
        from scheduler.executors.service import make_executors

        make_executors(config)
    told = [user_modules.advice(path) for path in user_modules.hidden(settled(config).tasks.path)]
    return "\n".join([f"{config.file or 'no configuration file'}: fine; kinds: {', '.join(kinds) or 'none'}", *told])


def version() -> str:
    """The version, and the commit of a checkout."""
    from scheduler.build import running

    return running()


def main(argv: Sequence[str] | None = None, *, factory: Factory = build) -> int:
    """The command ``schedd``; returns its exit status."""
    ignore_hangup()  # until the supervisor handles it, SIGHUP must not kill the process
    prepare()
    options = _parse(argv)
    debug = options.debug or os.environ.get("SCHEDD_DEBUG", "") not in ("", "0")
    try:
        bounds = BoundedRun.of(options)
        config = bounds.applied(load(options.config))
        if options.check:
            print(check(config))
            return OK
        if (options.reload or options.dev) and options.held is None:
            from scheduler.daemon import reloading

            return reloading.run(config, sys.argv[1:] if argv is None else argv, dev=options.dev)
        ended = serve(config, factory, bounds, options.held)
    except SchedulerError as error:
        if debug:
            traceback.print_exc()
        say(printable(f"schedd: {error}"))
        return _status_of(error)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
            raise
        say(f"schedd: too little memory or too few processes allowed: {NO_ROOM}")
        leave(FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    if ended.hard:
        leave(ended.status)
    if argv is None:  # the process is ours: no caller continues after this
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # it has stopped, and says so by its status
        _leave_soon(ended.status)
    return ended.status


def _status_of(error: SchedulerError) -> int:
    if isinstance(error, ConfigError):
        return USAGE
    return UNREACHABLE if isinstance(error, StoreUnavailableError) else FAILED


def options_parser() -> argparse.ArgumentParser:
    """The parser of the command line of ``schedd``."""
    parser = argparse.ArgumentParser(prog="schedd", description="Runs the schedd daemon in the foreground.")
    where = "the configuration; else $SCHEDD_CONFIG, ./config.toml, /etc/schedd/config.toml"
    parser.add_argument("--config", metavar="FILE", help=where)
    parser.add_argument("--check", action="store_true", help="check the configuration and task modules, and end")
    add_options(parser)
    parser.add_argument("--reload", action="store_true", help="start anew whenever a task module is edited")
    dev = "for development: --reload, the console with its link, and a line for each attempt"
    parser.add_argument("--dev", action="store_true", help=dev)
    parser.add_argument("--held", type=int, help=argparse.SUPPRESS)  # see daemon/reloading.py
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors at start")
    parser.add_argument("--version", action="store_true", help="print the version and end")
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser()
    options = parser.parse_args(argv)
    if options.version:
        print(f"schedd {version()}")
        parser.exit(OK)
    return options


def prepare() -> None:
    """Prepare the streams and the interpreter for a long-running process."""
    for fd in (0, 1, 2):  # a closed one would become the database's, and then be printed to
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    interpreter.tune()
    own_directory.guard()
    interpreter.raise_file_limit()
    faulthandler.enable()
    show_stacks()  # what is it doing? kill -USR1 tells on stderr


def _leave_soon(status: int) -> None:
    """End the process after EXIT_TIMEOUT, should the interpreter still wait.

    Handlers may have left threads, processes of ``multiprocessing``, or functions registered to run at exit."""

    def end() -> None:
        time.sleep(EXIT_TIMEOUT)
        logging.getLogger("scheduler").warning(
            "tasks have left something behind that does not end: the process ends without it"
        )
        leave(status)

    threading.Thread(target=end, name="schedd-exit", daemon=True).start()


def leave(status: int) -> NoReturn:
    """End the process without waiting for threads, or for functions registered to run at exit."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
