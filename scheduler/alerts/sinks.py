"""The sinks of alerts. Their requests keep to the address rules of ``[http]``."""

from __future__ import annotations

import asyncio
import email.policy
import email.utils
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from email.header import Header
from email.message import EmailMessage
from typing import Any, Protocol

import msgspec

from scheduler.alerts.machine import Rule
from scheduler.alerts.messages import Origin, plain_text
from scheduler.config.alerts import AlertSink
from scheduler.errors import ConfigError, SchedulerError
from scheduler.model.alerts import Alert, AlertKey
from scheduler.model.texts import rfc3339
from scheduler.model.webhooks import key_of, signature
from scheduler.ports import SECOND
from scheduler.system.processes import kill_session
from scheduler.tasks.http.client import HttpCall, send
from scheduler.tasks.http.errors import Refused, Unreachable
from scheduler.tasks.http.secrets import HIDDEN, Secrets, forms_of
from scheduler.tasks.mail import SmtpConnection

MAX_ANSWER = 2000  # bytes of an answer that are read
MAX_SHOWN = 200  # characters of it that an error shows
SHORTEST_HIDDEN = 6  # of a URL's parts: a shorter one is no secret
Body = Mapping[str, Any]  # of a message: see messages.compose


_SLACK_SIGNS = {"critical": ":rotating_light:", "warning": ":warning:"}
_NTFY_PRIORITIES = {"critical": "urgent", "warning": "high"}
_NTFY_TAGS = {"critical": "rotating_light", "warning": "warning"}
MAX_REMEMBERED = 100  # mails of which it is known who has got them
REFRESH_EVERY = 60.0  # seconds
LIFE = 5 * 60 * SECOND  # after which Alertmanager takes an alert for resolved that was not posted again
MAX_SKEW = 10 * SECOND  # by which the database's clock may be ahead of Alertmanager's
ALERTMANAGER_PATH = "/api/v2/alerts"
_HTTP = ("webhook", "slack", "ntfy", "alertmanager")


class SinkError(SchedulerError):
    """A message did not arrive; the text says why, without secrets."""


class Sink(Protocol):
    """Delivers one message. The same one may come again, with the same ``id``."""

    def deliver(self, body: Body) -> None:
        """Raises SinkError."""
        ...


def post(sink: AlertSink, data: bytes, headers: Mapping[str, str], settings: Mapping[str, Any], path: str = "") -> None:
    """POST to the sink's URL; ``path`` is added to it. Raises SinkError unless the answer is 2xx."""
    assert sink.url is not None
    url = sink.url.rstrip("/") + path if path else sink.url
    if sink.token is not None:
        headers = {**headers, "authorization": f"Bearer {sink.token}"}
    call = HttpCall("POST", url, headers, data, sink.timeout, MAX_ANSWER)
    try:
        reply = asyncio.run(send(call, settings, Secrets(settings)))
    except (SchedulerError, Unreachable, Refused, OSError) as error:
        raise SinkError(hidden(str(error) or type(error).__name__, sink)) from None
    if not 200 <= reply.status < 300:
        detail = " ".join(reply.body.decode("utf-8", "replace").split())[:MAX_SHOWN]
        raise SinkError(hidden(f"{_host(url)} answered {reply.status}: {detail}".rstrip(": "), sink))


def require_client() -> None:
    """Raises ConfigError if the HTTP client is not installed."""
    from importlib.util import find_spec

    if find_spec("httpx2") is None:
        raise ConfigError("alert sinks over HTTP need httpx2: pip install 'schedd[http]'")


def hidden(text: str, sink: AlertSink) -> str:
    """A text without the sink's secrets: its secret, its token, and of its URL all but the host."""
    if sink.url is not None:
        scheme, _, rest = sink.url.partition("://")
        host, slash, path = rest.partition("/")
        text = text.replace(sink.url, f"{scheme}://{host}{slash}…" if path else sink.url)
        for part in sorted(re.split(r"[/?&=#]", path), key=len, reverse=True):
            if len(part) >= SHORTEST_HIDDEN:
                text = text.replace(part, "…")
    for secret in filter(None, (sink.secret, sink.token)):
        for form in sorted(forms_of(secret), key=len, reverse=True):
            text = text.replace(form, HIDDEN)
    return text


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


class Webhook:
    """POSTs the body, signed as https://www.standardwebhooks.com says.

    It has ``webhook-id``, ``webhook-timestamp`` and, if there is a secret, ``webhook-signature``.
    """

    def __init__(self, sink: AlertSink, settings: Mapping[str, Any]) -> None:
        self._sink = sink
        self._settings = settings
        self._key = None if sink.secret is None else key_of(sink.secret)

    def deliver(self, body: Body) -> None:
        """Raises SinkError."""
        data, at = msgspec.json.encode(body), str(int(time.time()))
        headers = {"content-type": "application/json", "webhook-id": body["id"], "webhook-timestamp": at}
        if self._key is not None:
            headers["webhook-signature"] = signature(self._key, body["id"], at, data)
        post(self._sink, data, headers, self._settings)


class Slack:
    """POSTs ``{"text": …}``, as incoming webhooks of Slack, Mattermost and Rocket.Chat want it."""

    def __init__(self, sink: AlertSink, settings: Mapping[str, Any]) -> None:
        self._sink = sink
        self._settings = settings

    def deliver(self, body: Body) -> None:
        """Raises SinkError."""
        sign = ":white_check_mark:" if body["event"] == "recovered" else _SLACK_SIGNS[body["severity"]]
        text = f"{sign} *{_escaped(body['title'])}*\n{_escaped(plain_text(body))}"
        data = msgspec.json.encode({"text": text})
        post(self._sink, data, {"content-type": "application/json"}, self._settings)


def _escaped(text: str) -> str:
    """No error's text may mention a channel or make a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Ntfy:
    """POSTs the text to the topic's URL; its title, priority, tags and link are headers."""

    def __init__(self, sink: AlertSink, settings: Mapping[str, Any]) -> None:
        self._sink = sink
        self._settings = settings

    def deliver(self, body: Body) -> None:
        """Raises SinkError."""
        over = body["event"] == "recovered"
        headers = {
            "content-type": "text/plain; charset=utf-8",
            "title": _header(body["title"]),
            "priority": "default" if over else _NTFY_PRIORITIES[body["severity"]],
            "tags": "white_check_mark" if over else _NTFY_TAGS[body["severity"]],
            "x-schedd-message": body["id"],
        }
        if body["url"] is not None:
            headers["click"] = _header(body["url"])
        post(self._sink, body["text"].encode(), headers, self._settings)


def _header(text: str) -> str:
    """One line of ASCII; other characters as RFC 2047 encodes them, which ntfy reads."""
    line = " ".join(text.split())
    return line if line.isascii() else Header(line, "utf-8", maxlinelen=10_000).encode()


class MailSink:
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


class CommandSink:
    """Runs the program, which reads the message as JSON from its standard input.

    It has no shell, and a session of its own; all of it is killed when its time is over.
    """

    def __init__(self, sink: AlertSink, _settings: Mapping[str, Any]) -> None:
        self._sink = sink

    def deliver(self, body: Body) -> None:
        """Raises SinkError unless it ends with status 0 in time."""
        names = ("id", "event", "rule", "severity", "title")
        environ = {f"SCHEDD_ALERT_{name.upper()}": str(body[name] or "") for name in names}
        program = self._sink.command[0]
        try:
            process = subprocess.Popen(
                list(self._sink.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **environ},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise SinkError(f"{program} cannot be started: {getattr(error, 'strerror', None) or error}") from None
        try:
            _, output = process.communicate(msgspec.json.encode(body), timeout=self._sink.timeout)
        except subprocess.TimeoutExpired as error:
            if process.poll() is None:
                raise SinkError(f"{program} took longer than {self._sink.timeout:g} s, and was killed") from None
            output = error.stderr or b""  # it has ended: something that it left behind holds its output open
        finally:
            kill_session(process.pid)  # what it has left behind, too
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        if process.returncode != 0:
            text = " ".join(output.decode("utf-8", "replace").split())[-MAX_SHOWN:]
            raise SinkError(f"{program} ended with status {process.returncode}: {text}".rstrip(": "))


class Alertmanager:
    """Posts what fires again each minute, not messages. Remembers what it has posted, so as to say that it is over.

    Alertmanager drops an end that is yet to come by its own clock, in favour of the one that the firing alert had. So
    an end is dated back by ``MAX_SKEW``, and posted again for as long as the firing alert would have lived there.
    """

    def __init__(self, sink: AlertSink, settings: Mapping[str, Any], origin: Origin) -> None:
        self._sink = sink
        self._settings = settings
        self._origin = origin
        self._posted: dict[AlertKey, tuple[int, dict[str, Any]]] = {}  # what fired: since when, and what was posted
        self._ended: dict[AlertKey, tuple[int, dict[str, Any]]] = {}  # what ended: until when it is posted, and what

    def refresh(self, alerts: Iterable[Alert], rules: Mapping[str, Rule], now: int) -> None:
        """Post what fires, and as ended what was posted before and fires no more. Raises SinkError."""
        fires: dict[AlertKey, tuple[int, dict[str, Any]]] = {}
        for alert in alerts:
            rule = rules.get(alert.key.rule)
            if rule is not None and self._sink.takes(rule.name):
                fires[alert.key] = alert.began, self._alert(alert, rule)
        ended = {key: one for key, one in self._ended.items() if key not in fires and now < one[0]}
        for key, (began, row) in self._posted.items():
            if key not in fires:
                ended[key] = now + LIFE, {**row, "endsAt": rfc3339(max(began, now - MAX_SKEW))}
        ends = rfc3339(now + LIFE, exact=False)
        rows = [{**row, "endsAt": ends} for _, row in fires.values()] + [row for _, row in ended.values()]
        if rows:
            self._post(rows)
        self._posted, self._ended = fires, ended

    def deliver(self, body: Body) -> None:
        """Post a test. Raises SinkError."""
        labels = {"alertname": "schedd_test", "severity": body["severity"], **self._own_labels()}
        note = {"summary": body["title"], "description": body["text"]}
        self._post([{"labels": labels, "annotations": note}])

    def _alert(self, alert: Alert, rule: Rule) -> dict[str, Any]:
        key = alert.key
        labels = {"alertname": f"schedd_{rule.name}", "severity": rule.severity, **self._own_labels()}
        labels |= {name: value for name, value in (("kind", key.kind), ("fingerprint", key.fingerprint)) if value}
        made: dict[str, Any] = {
            "labels": labels,
            "annotations": {"summary": rule.title, "description": alert.text},
            "startsAt": rfc3339(alert.began),
        }
        link = self._origin.link(rule.page)
        return made if link is None else made | {"generatorURL": link}

    def _own_labels(self) -> dict[str, str]:
        return {} if self._origin.label is None else {"installation": self._origin.label}

    def _post(self, rows: list[dict[str, Any]]) -> None:
        post(
            self._sink,
            msgspec.json.encode(rows),
            {"content-type": "application/json"},
            self._settings,
            ALERTMANAGER_PATH,
        )


_TYPES: Mapping[str, Callable[[AlertSink, Mapping[str, Any]], Sink]] = {
    "webhook": Webhook,
    "slack": Slack,
    "ntfy": Ntfy,
    "email": MailSink,
    "command": CommandSink,
}


def make_sink(sink: AlertSink, settings: Mapping[str, Any], origin: Origin) -> Sink | Alertmanager:
    """``settings``: sections of the configuration, as the built-in tasks have them. Raises ConfigError."""
    if sink.type in _HTTP:
        require_client()
    return Alertmanager(sink, settings, origin) if sink.type == "alertmanager" else _TYPES[sink.type](sink, settings)
