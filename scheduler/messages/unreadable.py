"""The dead tasks that stand for messages which could not be read, of sources without a dead-letter queue."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar

from scheduler.engine.execution.context import Context
from scheduler.errors import PermanentError
from scheduler.messages.intake import UNREADABLE, Intake
from scheduler.model.inbox import INBOX
from scheduler.model.task import Task
from scheduler.transports.ports import Delivery


class UnreadableMessage(Task, kind=UNREADABLE, queue=INBOX):
    """Reads its message again: a replay, once the settings or the program have changed, makes the task of it."""

    source: str
    message_id: str
    reason: str
    body: str
    complete: bool
    headers: dict[str, Any]

    intakes: ClassVar[Mapping[str, Intake]] = {}
    """Of the sources of this process. Their receipts are of no use: the messages were acknowledged long ago."""

    def run(self, _ctx: Context) -> dict[str, Any]:
        intake = self.intakes.get(self.source)
        if intake is None:
            raise PermanentError(f"{self.reason}; this worker has no source {self.source}")
        if not self.complete:
            raise PermanentError(f"{self.reason}; only the beginning of the message was kept")
        delivery = Delivery(
            message_id=self.message_id, body=base64.b64decode(self.body), receipt="", headers=self.headers
        )
        letter = intake.reader.read(delivery)
        if letter.spec is None:
            raise PermanentError(letter.error or self.reason)
        (taken,) = intake.take([delivery])
        return {"task": None if taken.entry is None else taken.entry.task_id}
