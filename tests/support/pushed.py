"""A process with a door and its sources. It kills itself at a failpoint, or runs the tasks.

``python -m support.pushed CONFIG POINT NUMBER``: SIGKILL at the NUMBER-th hit of POINT; "-": none, and tasks are run.
It ends when its standard input does.
"""

from __future__ import annotations

import os
import signal
import sys

from scheduler import Scheduler
from scheduler.config.load import load
from scheduler.messages.service import MessageService
from scheduler.ports import FAILPOINTS
from support.receiving import Order


def main() -> None:
    config_file, point, number = sys.argv[1:]
    config = load(config_file, {})
    jobs = Scheduler(config.store.url)
    jobs.register(Order)
    left = int(number)

    def hit(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    FAILPOINTS.hit = hit
    service = MessageService(config, jobs)
    if point == "-":  # one that is killed would leave tasks half done, which run again
        jobs.start()
    service.start()
    sys.stdin.read()
    service.stop()
    jobs.close()


if __name__ == "__main__":
    main()
