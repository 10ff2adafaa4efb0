"""A process that receives from one source until nothing is left; it may kill itself at a failpoint.

``python -m support.receiving CONFIG TYPE FACTORY POINT NUMBER TURNS``: SIGKILL at the NUMBER-th hit of POINT ("-":
none), end after TURNS receives that brought nothing.
"""

from __future__ import annotations

import os
import signal
import sys

from scheduler import Context, Scheduler, Task
from scheduler.config.load import load
from scheduler.messages import receiver as receiver_module
from scheduler.messages.intake import Intake
from scheduler.messages.receiver import Receiver
from scheduler.ports import FAILPOINTS
from scheduler.transports import types
from scheduler.transports.ports import Source


class Order(Task, schema_version=2):
    """Its effect is a line in a file outside of the store."""

    number: int
    file: str

    def run(self, ctx: Context) -> None:
        with open(self.file, "a", encoding="utf-8") as out:
            out.write(f"{self.number} {ctx.idempotency_key}\n")

    @staticmethod
    def upgrade(payload: dict[str, object], _version: int) -> dict[str, object]:
        return {"number": payload["no"], "file": payload["file"]}


def receiver_of(config_file: str, type_name: str, factory: str, holder: str) -> tuple[Receiver, Scheduler]:
    types.OWN[types.SOURCES][type_name] = factory  # type: ignore[index]
    config = load(config_file, {})
    jobs = Scheduler(config.store.url)
    jobs.register(Order)
    source = types.make_source(config, "orders")
    assert isinstance(source, Source)
    intake = Intake("orders", config.sources["orders"], source.limits, jobs.submitter, holder)
    return Receiver(source, intake, jobs.database, holder), jobs


def die_at(point: str, number: int) -> None:
    """From now on the ``number``-th hit of a failpoint is the end of this process."""
    left = number

    def hit(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    FAILPOINTS.hit = hit


def main() -> None:
    config_file, type_name, factory, point, number, turns = sys.argv[1:]
    receiver, _ = receiver_of(config_file, type_name, factory, f"process-{os.getpid()}")
    die_at(point, int(number))
    receiver_module.IDLE_WAIT = 1.0
    idle = 0
    while idle < int(turns):
        idle = 0 if receiver.turn() else idle + 1


if __name__ == "__main__":
    main()
