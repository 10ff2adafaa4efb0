"""A process with a door and its sources. It kills itself at a failpoint, or runs the tasks.

``python -m support.pushed CONFIG POINT NUMBER``: SIGKILL at the NUMBER-th hit of POINT; "-": none, and tasks are run.
It ends when its standard input does.
"""

from __future__ import annotations

import sys

from scheduler import Scheduler
from scheduler.config.load import load
from scheduler.messages.service import MessageService
from support.receiving import Order, die_at


def main() -> None:
    config_file, point, number = sys.argv[1:]
    config = load(config_file, {})
    jobs = Scheduler(config.store.url)
    jobs.register(Order)
    die_at(point, int(number))
    service = MessageService(config, jobs)
    if point == "-":  # one that is killed would leave tasks half done, which run again
        jobs.start()
    service.start()
    sys.stdin.read()
    service.stop()
    jobs.close()


if __name__ == "__main__":
    main()
