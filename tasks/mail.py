"""EmailTask: sends mail by SMTP."""

from __future__ import annotations

import email.policy
import email.utils
import hashlib
import re
import smtplib
from collections.abc import Iterable, Mapping
from email.message import EmailMessage
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from scheduler import PermanentError, RetryPolicy, Task
from scheduler.tasks.http.client import trust
from scheduler.tasks.http.errors import Refused, Unreachable
from scheduler.tasks.http.secrets import HIDDEN, forms_of
from scheduler.tasks.settings import required, section

if TYPE_CHECKING:
    from scheduler import Context

IO_TIMEOUT = 30.0  # seconds
PORTS = {"starttls": 587, "tls": 465, "none": 25}
_ADDRESS = re.compile(r"[^@\s<>\"(),:;\[\]\\\x00-\x1f\x7f]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\Z")
# What says whom a mail is from or for, and how it got here, is not the caller's to write: the fields and settings do.
_OWN = {
    "from": "[mail] sender says whom mail comes from",
    "sender": "[mail] sender says whom mail comes from",
    "return-path": "[mail] sender says where bounces go",
    "errors-to": "[mail] sender says where bounces go",
    "to": "use the field to",
    "cc": "use the field to: each recipient gets a mail of his own",
    "bcc": "use the field to: each recipient gets a mail of his own",
    "apparently-to": "use the field to",
    "reply-to": "use the field reply_to",
    "subject": "use the field subject",
    "date": "it is when the task was scheduled",
    "message-id": "it is made of the task's key",
    "mime-version": "the mail is built from body and html",
    "auto-submitted": "every mail of a task says auto-generated",
    "received": "mail servers write it",
    "delivered-to": "mail servers write it",
    "x-original-to": "mail servers write it",
    "authentication-results": "mail servers write it",
}
_OWN_PREFIXES = {
    "resent-": "a task sends mails of its own only",
    "content-": "the mail is built from body and html",
    "arc-": "mail servers write it",
    "dkim-": "mail servers write it",
}


class EmailTask(Task, timeout=600, retry=RetryPolicy(min_wait=30, max_wait=7200, max_attempts=12)):
    """Sends a mail to one or several recipients, each of whom gets it by himself, once.

    to: an address, or several. subject, body: text. html: the same as HTML, beside it. reply_to: an address. headers:
    further header lines, but none that says whom the mail is from or for, or that mail servers write.

    Who has got the mail is recorded, so an attempt that follows sends it to the others only. ``Message-ID`` is the same
    at each attempt.

    The result is ``{"sent_to": […], "refused": {address: answer}}``. Recipients that the server refuses for good are in
    ``refused``, as long as others got it.

    Transient failures: no connection, a connection that breaks off or falls silent, every 4xx. Permanent failures:
    every 5xx (also a login that is refused), if no recipient got it; a server without STARTTLS; headers that no mail
    can have; a missing setting.

    Settings: ``[mail] host``, ``port``, ``tls`` (starttls, tls, none), ``user``, ``password``, ``sender``, ``ca``.
    """

    to: str | list[str]
    subject: Annotated[str, msgspec.Meta(max_length=998)]
    body: str
    html: str | None = None
    reply_to: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.recipients:
            raise ValueError("to has no address")
        for address in (*self.recipients, *([self.reply_to] if self.reply_to else ())):
            if not _ADDRESS.match(address):
                raise ValueError(f"{address!r} is not an address such as ada@example.org")
        for name, value in {"subject": self.subject, **self.headers}.items():
            if any(c in "\r\n\0" for c in value) or not re.fullmatch(r"[!-9;-~]+", name):
                raise ValueError(f"header {name!r} is not one line")
        for name in self.headers:
            refused = _refused_header(name.lower())
            if refused is not None:
                raise ValueError(f"header {name!r} cannot be set: {refused}")

    @property
    def recipients(self) -> list[str]:
        return list(dict.fromkeys([self.to] if isinstance(self.to, str) else self.to))

    def run(self, ctx: Context) -> dict[str, Any]:
        post = SmtpConnection(ctx.settings)
        sent: list[str] = []
        refused: dict[str, str] = {}
        later: list[Exception] = []
        try:
            for address in self.recipients:
                message = self.message(ctx, post.sender, address)
                try:
                    # By the address, not its place: a replay with other recipients must not take them for served.
                    ctx.step(f"to {_safe(address)}", post.send, address, message)
                    sent.append(address)
                except PermanentError as error:
                    if len(self.recipients) == 1 or error.status is None:
                        raise
                    refused[address] = str(error)
                except Unreachable:
                    raise
                except Refused as error:
                    later.append(error)
        finally:
            post.close()
        if later:
            raise later[0]
        if not sent:
            raise PermanentError("; ".join(refused.values()))
        return {"sent_to": sent, "refused": refused}

    def message(self, ctx: Context, sender: str, address: str) -> EmailMessage:
        """The mail for one recipient, the same at each attempt. Raises PermanentError for what is no mail."""
        try:
            return self._message(ctx, sender, address)
        except (ValueError, TypeError, LookupError) as error:
            raise PermanentError(f"the mail cannot be made: {error}") from None

    def _message(self, ctx: Context, sender: str, address: str) -> EmailMessage:
        made = EmailMessage(policy=email.policy.SMTP)
        made["From"] = sender
        made["To"] = address
        made["Subject"] = self.subject
        made["Date"] = ctx.created_at
        domain = sender.rpartition("@")[2].strip("> ")
        made["Message-ID"] = f"<{_safe(ctx.idempotency_key)}.{_safe(address)}@{domain}>"
        made["Auto-Submitted"] = "auto-generated"
        if self.reply_to is not None:
            made["Reply-To"] = self.reply_to
        for name, value in self.headers.items():
            made[name] = value
        made.set_content(self.body)
        if self.html is not None:
            made.add_alternative(self.html, subtype="html")
        return made


def _refused_header(name: str) -> str | None:
    """Why this header, in lower case, is not the caller's to set, and what to use instead; None if it is."""
    prefix = f"{name.partition('-')[0]}-"
    return _OWN.get(name) or (_OWN_PREFIXES.get(prefix) if prefix != f"{name}-" else None)


def _safe(text: str) -> str:
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in "-_." else f"={ord(c):x}" for c in text)
    return safe if len(safe) <= 100 else f"{safe[:60]}={hashlib.sha256(text.encode()).hexdigest()[:32]}"


class SmtpConnection:
    """A connection to the server that the settings name; made when first needed, kept for the next mail."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        mail = section(settings, "mail")
        self.host: str = required(settings, "mail", "host", '"smtp.example.org"')
        self.sender: str = required(settings, "mail", "sender", '"Example <noreply@example.org>"')
        self.tls: str = mail.get("tls") or "starttls"
        self.port: int = mail.get("port") or PORTS[self.tls]
        self._user, self._password = mail.get("user"), mail.get("password")
        self._ca = mail.get("ca")
        self._server: smtplib.SMTP | None = None
        if self._password and self.tls == "none":
            raise PermanentError("[mail] password is not sent without encryption: set tls to starttls or tls")

    def send(self, address: str, message: EmailMessage) -> None:
        """Send one mail. Raises PermanentError, Refused, Unreachable."""
        envelope_sender = email.utils.parseaddr(self.sender)[1]
        try:
            server = self._connected()
            server.send_message(message, envelope_sender, [address])
        except smtplib.SMTPRecipientsRefused as error:
            code, reply = error.recipients[address]
            raise self._answer(f"{address} is refused", code, reply) from None
        except smtplib.SMTPNotSupportedError as error:
            raise PermanentError(f"{self.host}: {_one_line(str(error), self._private())}") from None
        except smtplib.SMTPResponseException as error:
            raise self._answer(f"mail to {address} is refused", error.smtp_code, error.smtp_error) from None
        except (OSError, smtplib.SMTPException) as error:
            self.close()
            raise Unreachable(
                f"the mail server {self.host}:{self.port}: {_one_line(str(error), self._private())}"
            ) from None

    def _connected(self) -> smtplib.SMTP:
        if self._server is not None:
            return self._server
        context = trust(self._ca, "[mail] ca")
        if self.tls == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(self.host, self.port, timeout=IO_TIMEOUT, context=context)
        else:
            server = smtplib.SMTP(self.host, self.port, timeout=IO_TIMEOUT)
        self._server = server
        server.ehlo_or_helo_if_needed()
        if self.tls == "starttls":
            server.starttls(context=context)
            server.ehlo()
        if self._user:
            try:
                server.login(self._user, self._password or "")
            except smtplib.SMTPResponseException as error:
                # Not the answer to a mail, so no recipient is to blame: a status would say so.
                raise self._login(error) from None
        return server

    def _login(self, error: smtplib.SMTPResponseException) -> Exception:
        text = f"{self.host} refuses the login: {error.smtp_code} {_one_line(error.smtp_error, self._private())}"
        return Unreachable(text) if 400 <= error.smtp_code < 500 else PermanentError(text)

    def _answer(self, what: str, code: int, reply: bytes | str) -> PermanentError | Refused:
        text = f"{what}: {code} {_one_line(reply, self._private())}"
        if not 400 <= code < 500 and code != -1:
            return PermanentError(text, status=code)
        return Refused(text, code if code > 0 else None)

    def _private(self) -> list[str]:
        """What a login says, should the server repeat it."""
        if not self._password:
            return []
        return sorted({*forms_of(f"\0{self._user or ''}\0{self._password}"), *forms_of(self._password)}, key=len)[::-1]

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            try:
                server.quit()
            except (OSError, smtplib.SMTPException):
                server.close()


def _one_line(answer: bytes | str, hide: Iterable[str] = ()) -> str:
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    for one in hide:
        text = text.replace(one, HIDDEN)
    return " ".join(text.replace("\0", "\ufffd").split())[:300]
