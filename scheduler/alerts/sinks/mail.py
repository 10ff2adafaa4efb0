"""E-mail, through the server of ``[mail]``."""

from __future__ import annotations

import email.policy
import email.utils
import time
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any

from scheduler.alerts.messages import plain_text
from scheduler.alerts.sinks.sink import Body, SinkError
from scheduler.config.alerts import AlertSink
from scheduler.errors import SchedulerError
from scheduler.tasks.http.errors import Refused, Unreachable
from scheduler.tasks.mail import SmtpConnection

MAX_REMEMBERED = 100  # messages


class Mail:
    """Sends one mail to each address. ``Message-ID`` is made of the message's id: the same when it is sent again."""

    def __init__(self, sink: AlertSink, settings: Mapping[str, Any]) -> None:
        self._sink = sink
        self._settings = settings
        self._sent: dict[str, set[str]] = {}  # of the last messages, who has got them

    def deliver(self, body: Body) -> None:
        """Raises SinkError if an address was refused; the next delivery goes to those that have not got it."""
        wrong: list[str] = []
        if len(self._sent) >= MAX_REMEMBERED:
            self._sent.clear()
        sent = self._sent.setdefault(body["id"], set())
        try:
            connection = SmtpConnection(self._settings)
            try:
                for number, address in enumerate(self._sink.to):
                    if address in sent:
                        continue
                    try:
                        connection.send(address, self._message(connection.sender, address, body, number))
                        sent.add(address)
                    except (SchedulerError, Refused) as error:
                        wrong.append(str(error))
            finally:
                connection.close()
        except (SchedulerError, Unreachable, OSError, ValueError) as error:
            raise SinkError(str(error) or type(error).__name__) from None
        if wrong:
            raise SinkError("; ".join(wrong))

    def _message(self, sender: str, address: str, body: Body, number: int) -> EmailMessage:
        made = EmailMessage(policy=email.policy.SMTP)
        made["From"] = sender
        made["To"] = address
        made["Subject"] = " ".join(body["title"].split())
        made["Date"] = email.utils.formatdate(time.time())
        domain = sender.rpartition("@")[2].strip("> ")
        made["Message-ID"] = f"<alert-{body['id']}.{number}@{domain}>"
        made["Auto-Submitted"] = "auto-generated"
        made.set_content(plain_text(body) + "\n")
        return made
