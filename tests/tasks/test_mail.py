"""EmailTask against a real SMTP server."""

from __future__ import annotations

import base64
import email
import email.policy
import socket
import ssl
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from scheduler import PermanentError, RetryPolicy, Scheduler
from scheduler.tasks import EmailTask, mail
from scheduler.tasks.http.errors import Refused, Unreachable
from scheduler.testing import FakeClock, drain
from support.certificates import Certificates
from support.databases import Database

from .fake import FakeContext


class Inbox:
    """``answers``: what it says to a recipient, or to the mail as a whole (""), if not 250."""

    def __init__(self) -> None:
        self.mails: list[tuple[str, EmailMessage]] = []
        self.answers: dict[str, str] = {}

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address in self.answers:
            return self.answers[address]
        envelope.rcpt_tos.append(address)
        return "250 fine"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if "" in self.answers:
            return self.answers[""]
        made = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(made, EmailMessage)
        self.mails.append((envelope.rcpt_tos[0], made))
        return "250 taken"


class Place:
    """A server on a free port, and the settings for it."""

    def __init__(self, tls: ssl.SSLContext | None, ca: Path, **options: Any) -> None:
        self.inbox = Inbox()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.controller = Controller(self.inbox, hostname="127.0.0.1", port=port, tls_context=tls, **options)
        self.controller.start()
        how = "none" if tls is None else "starttls"
        sender = "Example <noreply@sender.example>"
        self.settings = {"mail": {"host": "127.0.0.1", "port": port, "tls": how, "sender": sender, "ca": str(ca)}}

    def send(self, task: EmailTask, ctx: FakeContext | None = None, **mail: Any) -> Any:
        ctx = ctx or FakeContext()
        ctx.settings = {"mail": self.settings["mail"] | mail}
        return task.run(ctx)  # type: ignore[arg-type]


@pytest.fixture
def place(certificates: Certificates) -> Iterator[Place]:
    made = Place(None, certificates.ca)
    yield made
    made.controller.stop()


@pytest.fixture
def secure(certificates: Certificates) -> Iterator[Place]:
    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        good = isinstance(data, LoginPassword) and data.password == b"hunter2"
        message = made.inbox.answers.get("login")
        return AuthResult(success=good, handled=good, message=message)

    tls = certificates.server("127.0.0.1")
    made = Place(tls, certificates.ca, require_starttls=True, authenticator=check, auth_required=True)
    yield made
    made.controller.stop()


MAIL = EmailTask("ada@example.org", "Grüße", "Hallo,\nAda\n.\n", html="<p>Hallo</p>", reply_to="me@example.org")


def test_a_mail(place: Place) -> None:
    assert place.send(MAIL) == {"sent_to": ["ada@example.org"], "refused": {}}
    ((to, mail),) = place.inbox.mails
    assert to == mail["To"] == "ada@example.org"
    assert mail["Subject"] == "Grüße"
    assert mail["From"] == "Example <noreply@sender.example>"
    assert mail["Reply-To"] == "me@example.org"
    assert mail["Message-ID"] == "<task-42.ada=40example.org@sender.example>"
    assert mail["Date"].startswith("Fri, 02 Jan 2026 03:04:05")
    plain, html = mail.iter_parts()
    assert plain.get_content() == "Hallo,\r\nAda\r\n.\r\n"  # type: ignore[attr-defined]
    assert html.get_content().strip() == "<p>Hallo</p>"  # type: ignore[attr-defined]


def test_with_encryption_and_a_login(secure: Place) -> None:
    assert secure.send(MAIL, user="me", password="hunter2")["sent_to"] == ["ada@example.org"]
    with pytest.raises(PermanentError, match="refuses the login: 535") as failed:
        secure.send(MAIL, user="me", password="wrong-one")
    assert "wrong-one" not in str(failed.value)
    with pytest.raises(Unreachable, match="certificate"):
        secure.send(MAIL, ca=None)
    with pytest.raises(PermanentError, match="530"):
        secure.send(MAIL)
    assert len(secure.inbox.mails) == 1


@pytest.mark.parametrize("how", ["plain", "login", "itself"])
def test_a_server_that_repeats_the_password(secure: Place, how: str) -> None:
    password = "hunter2-of-the-mail"
    credentials = {"plain": f"\0me\0{password}", "login": password, "itself": ""}[how]
    secure.inbox.answers["login"] = "535 no: " + (
        base64.b64encode(credentials.encode()).decode() if credentials else password
    )
    with pytest.raises(PermanentError, match="refuses the login: 535 no") as failed:
        secure.send(MAIL, user="me", password=password)
    for secret in (password, base64.b64encode(credentials.encode()).decode() or password):
        assert secret not in str(failed.value)


def test_a_password_is_never_sent_in_the_open(place: Place) -> None:
    with pytest.raises(PermanentError, match="not sent without encryption"):
        place.send(MAIL, user="me", password="hunter2")
    with pytest.raises(PermanentError, match="STARTTLS"):
        place.send(MAIL, tls="starttls")


@pytest.mark.parametrize("where", ["ada@example.org", ""])
def test_what_the_server_answers(place: Place, where: str) -> None:
    place.inbox.answers[where] = "451 later"
    with pytest.raises(Refused, match="451 later") as later:
        place.send(MAIL)
    assert later.value.status == 451
    place.inbox.answers[where] = "550 never"
    with pytest.raises(PermanentError, match="550 never") as never:
        place.send(MAIL)
    assert never.value.status == 550


def test_each_of_several_gets_it_once(place: Place) -> None:
    task = EmailTask(["a@example.org", "b@example.org", "c@example.org", "a@example.org"], "x", "y")
    ctx = FakeContext()
    place.inbox.answers = {"b@example.org": "450 busy", "c@example.org": "550 unknown"}
    with pytest.raises(Refused, match="450 busy"):
        place.send(task, ctx)
    place.inbox.answers.pop("b@example.org")
    sent = place.send(task, ctx)  # the next attempt: what was done is recorded
    assert sent["sent_to"] == ["a@example.org", "b@example.org"]
    assert list(sent["refused"]) == ["c@example.org"]
    assert [to for to, _ in place.inbox.mails] == ["a@example.org", "b@example.org"]


@pytest.mark.case(20)
def test_a_replay_with_another_recipient_reaches_that_one(place: Place, database: Database) -> None:
    jobs = Scheduler.for_testing(url=database.url, clock=FakeClock(), settings=place.settings)
    jobs.register(EmailTask)
    place.inbox.answers = {"typo@example.org": "450 busy"}
    mail_id = (
        jobs.task(EmailTask(["a@example.org", "typo@example.org"], "x", "y")).with_retry(RetryPolicy.none()).schedule()
    )
    drain(jobs)
    assert jobs.get_task_status(mail_id) == "dead"
    jobs.dead_letters.replay(mail_id, payload=EmailTask(["b@example.org", "a@example.org"], "x", "y"))
    drain(jobs)
    assert jobs.result(mail_id, timeout=0)["sent_to"] == ["b@example.org", "a@example.org"]
    assert [to for to, _ in place.inbox.mails] == ["a@example.org", "b@example.org"]
    jobs.close()


@pytest.mark.parametrize("headers", [{"Importance": "\ud800"}])
def test_what_no_mail_can_be_made_of_is_not_tried_again(place: Place, headers: dict[str, str]) -> None:
    task = EmailTask("ada@example.org", "s", "b", reply_to="me@example.org", headers=headers)
    with pytest.raises(PermanentError, match="the mail cannot be made: "):
        place.send(task)


def test_certificates_that_cannot_be_read_are_named(place: Place) -> None:
    with pytest.raises(Unreachable, match=r"\[mail\] ca = '/nowhere.pem' cannot be read: No such file"):
        place.send(MAIL, tls="starttls", ca="/nowhere.pem")


def test_no_server(certificates: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"mail": {"host": "127.0.0.1", "port": port, "tls": "none", "sender": "me@example.org"}}
    with pytest.raises(Unreachable, match=f"the mail server 127.0.0.1:{port}"):
        MAIL.run(FakeContext(settings))  # type: ignore[arg-type]
    with pytest.raises(PermanentError, match=r"needs the setting host of \[mail\]"):
        MAIL.run(FakeContext({}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("greeting", "stays", "error"),
    [
        (b"", True, Unreachable),
        (b"", False, Unreachable),
        (b"220 hello\r\n", False, Unreachable),
        (b"220 hello\r\n", True, Unreachable),
        (b"nonsense\r\n", True, Refused),
        (b"421 busy\r\n", True, Refused),
        (b"554 not you\r\n", True, PermanentError),
    ],
)
def test_servers_that_misbehave(
    greeting: bytes, stays: bool, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail, "IO_TIMEOUT", 0.3 if error is Unreachable else 20.0)  # time enough to hear an answer
    over = threading.Event()

    def talk() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(greeting)
            if stays:
                over.wait(30)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=talk)
        thread.start()
        port = server.getsockname()[1]
        settings = {"mail": {"host": "127.0.0.1", "port": port, "tls": "none", "sender": "me@example.org"}}
        try:
            with pytest.raises(error):
                MAIL.run(FakeContext(settings))  # type: ignore[arg-type]
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    "fields",
    [
        {"to": "nobody"},
        {"to": []},
        {"to": "a@b\r\nBcc: c@d"},
        {"subject": "a\nBcc: c@d"},
        {"headers": {"X-A": "a\r\nb"}},
        {"headers": {"Bcc:": "a"}},
        {"reply_to": "x"},
    ],
)
def test_what_is_refused_when_built(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        EmailTask(**({"to": "a@b", "subject": "s", "body": "b"} | fields))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("From", r"\[mail\] sender says whom"),
        ("sender", r"\[mail\] sender says whom"),
        ("Return-Path", r"\[mail\] sender says where bounces go"),
        ("Errors-To", r"\[mail\] sender says where bounces go"),
        ("TO", "use the field to"),
        ("Cc", "use the field to: each recipient"),
        ("BCC", "use the field to: each recipient"),
        ("Reply-To", "use the field reply_to"),
        ("Subject", "use the field subject"),
        ("Date", "when the task was scheduled"),
        ("Message-ID", "made of the task's key"),
        ("Resent-From", "mails of its own only"),
        ("Resent-Bcc", "mails of its own only"),
        ("Content-Type", "built from body and html"),
        ("Received", "mail servers write it"),
        ("DKIM-Signature", "mail servers write it"),
        ("ARC-Seal", "mail servers write it"),
        ("Auto-Submitted", "auto-generated"),
    ],
)
def test_headers_of_the_envelope_are_refused(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^header '{name}' cannot be set: .*{says}"):
        EmailTask("ada@example.org", "s", "b", headers={name: "eve@example.org"})


def test_other_headers_are_sent(place: Place) -> None:
    """Also such as begin like one that is refused."""
    wanted = {"X-Sender": "a", "List-Id": "<x.example>", "In-Reply-To": "<1@x>", "Content": "b", "To-Do": "c"}
    place.send(EmailTask("ada@example.org", "s", "b", headers=wanted))
    ((_, message),) = place.inbox.mails
    assert {name: message[name] for name in wanted} == wanted
