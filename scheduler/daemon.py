"""The daemon ``schedd``: the command line, and what is set up before a Scheduler runs in the foreground."""

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
from typing import Any

from scheduler import config as configuration
from scheduler import interpreter, log
from scheduler.config import Config
from scheduler.engine import cgroups
from scheduler.errors import ConfigError, SchedulerError, StoreUnavailableError
from scheduler.modules import Loader, find_state, make_scheduler
from scheduler.notify import Notifier
from scheduler.settings import mask
from scheduler.signals import Signals
from scheduler.supervisor import FAILED, OK, UNREACHABLE, Ended, Service, Supervisor

USAGE, INTERRUPTED = 2, 130
EXIT_PATIENCE = 3.0  # seconds that what tasks have left behind may keep a process that has stopped

logger = logging.getLogger("scheduler.daemon")

Factory = Callable[[Config], Service]


def build(config: Config) -> Service:
    """The Scheduler that ``config`` describes. Raises ConfigError."""
    from scheduler.app import Scheduler  # brings SQLAlchemy: not for --version, --check or a mistaken setting

    # capture_root: whatever a handler writes with logging is kept with its attempt, not only ctx.log
    return make_scheduler(config, Scheduler, capture_root=True)


def serve(config: Config, factory: Factory) -> Ended:
    """Run the daemon with this configuration until it is told to stop. Raises SchedulerError."""
    notifier = Notifier.take()
    log.configure(config.log)
    cgroups.settle()
    service = factory(config)
    loader = Loader(service)
    kinds = loader.register(config)
    logger.log(
        logging.INFO if kinds else logging.WARNING,
        "schedd %s starts" if kinds else "schedd %s starts without any task type: see [tasks] modules and builtin",
        version(),
        extra={"store": mask(config.store.url), "file": config.file, "kinds": kinds},
    )
    for module in loader.idle:
        logger.warning("module %s defines no task type and has no setup()", module)
    with Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        return Supervisor(config, service, loader, notifier, signals).run()


def check(config: Config) -> str:
    """Import the task modules and check their types without touching the store. Raises ConfigError."""
    from scheduler.model.registry import Registry

    class Checker:
        registry = Registry()

        def register(self, task_type: Any) -> None:
            self.registry.add(task_type)

    kinds = Loader(Checker()).register(config)
    find_state(config)
    return f"{config.file or 'no configuration file'}: fine; kinds: {', '.join(kinds) or 'none'}"


def version() -> str:
    """The installed version."""
    from importlib import metadata

    return metadata.version("schedd")


def main(argv: Sequence[str] | None = None, *, factory: Factory = build) -> int:
    """The command ``schedd``; returns its exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can be served, a wish to reload must not kill
    _prepare()
    options = _parse(argv)
    debug = options.debug or os.environ.get("SCHEDD_DEBUG", "") not in ("", "0")
    try:
        config = configuration.load(options.config)
        if options.check:
            print(check(config))
            return OK
        ended = serve(config, factory)
    except SchedulerError as error:
        if debug:
            traceback.print_exc()
        print(f"schedd: {error}", file=sys.stderr)
        return _status_of(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    if ended.hard:
        leave(ended.status)
    if argv is None:  # the process is ours: nobody has called this who goes on
        _leave_soon(ended.status)
    return ended.status


def _status_of(error: SchedulerError) -> int:
    if isinstance(error, ConfigError):
        return USAGE
    return UNREACHABLE if isinstance(error, StoreUnavailableError) else FAILED


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="schedd", description="Runs the schedd daemon in the foreground.")
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: see docs/configuration.md)")
    parser.add_argument("--check", action="store_true", help="check the configuration and task modules, and end")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors at start")
    parser.add_argument("--version", action="store_true", help="print the version and end")
    options = parser.parse_args(argv)
    if options.version:
        print(f"schedd {version()}")
        parser.exit(OK)
    return options


def _prepare() -> None:
    """What a long-running process wants of its interpreter."""
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
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # what is it doing? kill -USR1 tells on stderr


def _leave_soon(status: int) -> None:
    """End the process after a while, should what handlers have left behind keep the interpreter from ending: threads,
    processes of ``multiprocessing``, what was registered to run at exit."""

    def end() -> None:
        time.sleep(EXIT_PATIENCE)
        logging.getLogger("scheduler").warning("what tasks have left behind does not end: the process ends without it")
        leave(status)

    threading.Thread(target=end, name="schedd-exit", daemon=True).start()


def leave(status: int) -> None:
    """End the process without waiting for threads, or for what was registered to run at exit."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
