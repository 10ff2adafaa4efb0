"""Each sink against a real receiver: what arrives, what is refused, and that no error shows a secret."""

from __future__ import annotations

import base64
import email.header
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.alerts.machine import Notice, Rule
from scheduler.alerts.messages import Origin, compose
from scheduler.alerts.sinks import LIFE, SinkError, make_sink
from scheduler.alerts.sinks import Alertmanager as AlertmanagerSink
from scheduler.config.alerts import AlertSink
from scheduler.model.alerts import Alert, AlertEvent, AlertKey, AlertPhase
from scheduler.ports import SECOND

from ..tasks.server import Server  # noqa: TID252  # "tasks" at the top is the package
from ..tasks.test_mail import Inbox  # noqa: TID252
from .alertmanager import Alertmanager

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Later\r\nContent-Length: 4\r\n\r\nbusy"
SETTINGS: dict[str, Any] = {"http": {"allow": ["127.0.0.1"]}}
ORIGIN = Origin("prod", "https://console.example")
RULE = Rule("dead_letters", "dead letters", page="dead")
NOW = 1_800_000_000 * SECOND


def alert(text: str = "3 dead letters of Mail: <!channel> Zeitüberschreitung") -> Alert:
    key = AlertKey("dead_letters", "Mail", "5f0c")
    return Alert(key, AlertPhase.FIRING, NOW, 1, NOW - 90 * SECOND, 3, text, {"tasks": [7]}, NOW, NOW)


BODY = compose(Notice(AlertEvent.FIRED, RULE.name, (alert(),)), RULE, ORIGIN, "message-1", NOW)
OVER = compose(Notice(AlertEvent.RECOVERED, RULE.name, (alert(),)), RULE, ORIGIN, "message-2", NOW)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(OK)
    yield made
    made.close()


def deliver(sink: AlertSink, body: Any = BODY, settings: Any = SETTINGS) -> None:
    make_sink(sink, settings, ORIGIN).deliver(body)


def test_a_webhook_is_signed_json(server: Server) -> None:
    secret = "whsec_" + base64.b64encode(b"the key").decode()
    deliver(AlertSink(url=f"{server.url}/hook", secret=secret, token="t0ken"))
    (asked,) = server.asked
    body = json.loads(asked.body)
    assert (asked.method, asked.path, asked.headers["authorization"]) == ("POST", "/hook", "Bearer t0ken")
    assert (body["event"], body["title"], body["number"]) == ("fired", "[prod] dead letters (Mail)", 3)
    assert body["url"] == "https://console.example/dead?kind=Mail&fingerprint=5f0c"
    assert body["alerts"][0]["url"] == "https://console.example/tasks/7"
    # As https://www.standardwebhooks.com has receivers check it:
    signed = f"{asked.headers['webhook-id']}.{asked.headers['webhook-timestamp']}.".encode() + asked.body
    wanted = base64.b64encode(hmac.new(b"the key", signed, hashlib.sha256).digest()).decode()
    assert asked.headers["webhook-signature"] == f"v1,{wanted}"
    assert asked.headers["webhook-id"] == body["id"] == "message-1"
    assert abs(int(asked.headers["webhook-timestamp"]) - time.time()) < 120


def test_slack_gets_a_text_that_mentions_no_user(server: Server) -> None:
    deliver(AlertSink(type="slack", url=server.url))
    text = json.loads(server.asked[0].body)["text"]
    assert text.startswith(":warning: *[prod] dead letters (Mail)*\n3 dead letters of Mail: &lt;!channel&gt;")
    assert text.endswith("https://console.example/dead?kind=Mail&amp;fingerprint=5f0c")


def test_ntfy_gets_title_priority_tags_and_link_in_headers(server: Server) -> None:
    sink = AlertSink(type="ntfy", url=f"{server.url}/topic", token="tk_1")
    deliver(sink)
    deliver(sink, {**OVER, "title": "vorbei: Überlast"})
    fired, over = server.asked
    assert fired.headers["title"] == "[prod] dead letters (Mail)"
    assert (fired.headers["priority"], fired.headers["tags"]) == ("high", "warning")
    assert fired.headers["click"] == "https://console.example/dead?kind=Mail&fingerprint=5f0c"
    assert fired.headers["authorization"] == "Bearer tk_1"
    assert fired.body.decode().startswith("3 dead letters of Mail")
    assert (over.headers["priority"], over.headers["tags"]) == ("default", "white_check_mark")
    ((title, charset),) = email.header.decode_header(over.headers["title"])
    assert isinstance(title, bytes)
    assert title.decode(str(charset)) == "vorbei: Überlast"
    assert "it lasted 1 min 30 s" in over.body.decode()


def test_mail_goes_to_each_address_once(tmp_path: Path) -> None:
    from aiosmtpd.controller import Controller

    inbox = Inbox()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(inbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        mail = {"host": "127.0.0.1", "port": port, "tls": "none", "sender": "schedd <noreply@example.org>"}
        sink = make_sink(AlertSink(type="email", to=("a@example.org", "b@example.org")), {"mail": mail}, ORIGIN)
        inbox.answers["b@example.org"] = "451 later"
        with pytest.raises(SinkError, match=r"b@example\.org is refused: 451 later"):
            sink.deliver(BODY)
        inbox.answers.clear()
        sink.deliver(BODY)
    finally:
        controller.stop()
    assert [address for address, _ in inbox.mails] == ["a@example.org", "b@example.org"]
    message = inbox.mails[0][1]
    assert message["Subject"] == "[prod] dead letters (Mail)"
    assert message["Message-ID"] == "<alert-message-1.0@example.org>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert "Zeitüberschreitung" in message.get_content()


def test_a_command_reads_json_and_is_killed_with_what_it_started(tmp_path: Path) -> None:
    out = tmp_path / "out"
    deliver(AlertSink(type="command", command=("sh", "-c", f'cat >{out}; echo "$SCHEDD_ALERT_RULE" >>{out}')))
    first, rule = out.read_text().rsplit("}", 1)
    assert json.loads(first + "}")["id"] == "message-1"
    assert rule.strip() == "dead_letters"
    began = time.monotonic()
    with pytest.raises(SinkError, match=r"sh took longer than 0\.2 s, and was killed"):
        deliver(AlertSink(type="command", command=("sh", "-c", "sleep 600 & wait"), timeout=0.2))
    assert time.monotonic() - began < 60
    with pytest.raises(SinkError, match="/no/such/program cannot be started: No such file"):
        deliver(AlertSink(type="command", command=("/no/such/program",)))


@pytest.mark.parametrize("left_behind", ["sleep 600 & ", "setsid sleep 5 & "])
def test_a_command_has_ended_though_something_it_left_behind_holds_its_output(left_behind: str) -> None:
    deliver(AlertSink(type="command", command=("sh", "-c", f"cat >/dev/null; {left_behind}"), timeout=0.5))
    failing = f"cat >/dev/null; echo no such channel >&2; {left_behind} exit 3"
    with pytest.raises(SinkError, match=r"sh ended with status 3: no such channel"):
        deliver(AlertSink(type="command", command=("sh", "-c", failing), timeout=0.5))


def test_addresses_that_are_not_public_are_refused_unless_allowed(server: Server) -> None:
    with pytest.raises(SinkError, match=r"is at 127.0.0.1, which is not public; .* \[http\] allow"):
        deliver(AlertSink(type="slack", url=f"{server.url}/services/T0/hidden-part"), settings={})
    assert server.asked == []


@pytest.mark.parametrize("answer", [BUSY, b"HTTP/1.1 404 No\r\nContent-Length: 11\r\n\r\nhidden-part", b"nonsense"])
def test_no_error_shows_a_secret(answer: bytes) -> None:
    server = Server(answer)
    sink = AlertSink(url=f"{server.url}/services/T0/hidden-part", token="s3cret-token", secret="s3cret-key")
    with pytest.raises(SinkError) as caught:
        deliver(sink)
    server.close()
    assert "hidden-part" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_a_receiver_that_hangs_is_given_up(server: Server) -> None:
    slow = Server(lambda connection, asked: slow.stall(connection, asked))
    began = time.monotonic()
    with pytest.raises(SinkError, match=r"took longer than 0\.3 s"):
        deliver(AlertSink(type="slack", url=slow.url, timeout=0.3))
    slow.close()
    assert time.monotonic() - began < 25


def test_alertmanager_fires_and_resolves(tmp_path: Path) -> None:
    manager = Alertmanager(tmp_path)
    try:
        sink = make_sink(AlertSink(type="alertmanager", url=manager.url), SETTINGS, ORIGIN)
        assert isinstance(sink, AlertmanagerSink)
        now = time.time_ns() // 1000
        one = alert()._replace(began=now - SECOND)
        other = one._replace(key=AlertKey("dead_letters", "Report"))
        sink.refresh([one, other], {RULE.name: RULE}, now)
        found = {a["labels"]["kind"]: a for a in manager.active()}
        assert set(found) == {"Mail", "Report"}
        assert found["Mail"]["labels"] == {
            "alertname": "schedd_dead_letters",
            "severity": "warning",
            "installation": "prod",
            "kind": "Mail",
            "fingerprint": "5f0c",
        }
        assert found["Mail"]["annotations"]["summary"] == "dead letters"
        sink.refresh([other], {RULE.name: RULE}, time.time_ns() // 1000)
        deadline = time.monotonic() + 30
        while {a["labels"]["kind"] for a in manager.active()} != {"Report"}:
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)
        sink.refresh([], {RULE.name: RULE}, time.time_ns() // 1000)
        sink.deliver(BODY)
        while [a["labels"]["alertname"] for a in manager.active()] != ["schedd_test"]:
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)
    finally:
        manager.close()


@pytest.mark.parametrize("ahead", [0, 5])
def test_alertmanager_resolves_though_the_databases_clock_is_ahead(tmp_path: Path, ahead: int) -> None:
    """An end that is yet to come there loses against the end that the firing alert was given."""
    manager = Alertmanager(tmp_path)
    try:
        sink = make_sink(AlertSink(type="alertmanager", url=manager.url), SETTINGS, ORIGIN)
        assert isinstance(sink, AlertmanagerSink)

        def now() -> int:
            return time.time_ns() // 1000 + ahead * SECOND

        sink.refresh([alert()._replace(began=now() - 60 * SECOND)], {RULE.name: RULE}, now())
        assert len(manager.active()) == 1
        sink.refresh([], {RULE.name: RULE}, now())
        assert manager.active() == []
    finally:
        manager.close()


def test_the_end_of_an_alert_is_posted_again_for_a_while(server: Server) -> None:
    """Alertmanager may have been restarted, or its clock may be far behind."""
    sink = make_sink(AlertSink(type="alertmanager", url=server.url), SETTINGS, ORIGIN)
    assert isinstance(sink, AlertmanagerSink)
    now = time.time_ns() // 1000

    def ends(at: int, *alerts: Alert) -> list[str]:
        before = len(server.asked)
        sink.refresh(alerts, {RULE.name: RULE}, at)
        return [row["endsAt"] for asked in server.asked[before:] for row in json.loads(asked.body)]

    one = alert()._replace(began=now - 60 * SECOND)
    ends(now, one)
    ended = ends(now + SECOND)
    assert len(ended) == 1
    assert ends(now + 60 * SECOND) == ended
    assert ends(now + 120 * SECOND, one) > ended  # it fires again
    assert ends(now + 180 * SECOND) > ended
    assert len(ends(now + 181 * SECOND)) == 1
    assert ends(now + 181 * SECOND + LIFE) == []
