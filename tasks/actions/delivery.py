"""ActionDeliveryTask: brings a signed action to the inbox of a recipient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from scheduler import PermanentError, RetryPolicy, Task
from scheduler.tasks.actions.tokens import DOMAIN, check_audience, read
from scheduler.tasks.http.client import HttpCall, send
from scheduler.tasks.http.errors import refuse
from scheduler.tasks.http.secrets import Secrets
from scheduler.tasks.http.task import MAX_REFUSAL_TEXT, header_of, text_of
from scheduler.tasks.settings import filled

if TYPE_CHECKING:
    from scheduler import AsyncContext

INBOX = "https://cl-o.{recipient}/api/inbox"


class ActionDeliveryTask(Task, timeout=300, retry=RetryPolicy(min_wait=10, max_wait=43200, max_attempts=50)):
    """POSTs ``{"token": …, "related": […]}`` to the inbox of a recipient.

    recipient: a domain, such as ``bob.example``. token: the signed action; empty: the ``token`` in the result of the
    task it depends on; the recipient must be in its audience. related: further tokens that the recipient needs.
    timeout: seconds for one attempt.

    The inbox is ``https://cl-o.{recipient}/api/inbox``, or what ``[actions] inbox`` says instead. Redirects are not
    followed.

    The result is ``{"recipient", "status"}``.

    Transient failures: as for HttpTask; attempts go on for 19 days, from 10 s to 12 h apart. Permanent failures: a
    token that is no action, or not for this recipient (``status`` 403); every 4xx but 408, 425 and 429; a redirect; an
    inbox at an address that is not public and not in ``[http] allow``.
    """

    recipient: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    token: str = ""
    related: list[str] = msgspec.field(default_factory=list)
    timeout: Annotated[float, msgspec.Meta(gt=0, le=300)] = 30.0

    def __post_init__(self) -> None:
        if not DOMAIN.match(self.recipient):
            raise ValueError(f"recipient must be a domain in lower case, such as bob.example, not {self.recipient!r}")

    async def run(self, ctx: AsyncContext) -> dict[str, Any]:
        token = self.token or token_of(await ctx.results())
        check_audience(read(token), self.recipient, ctx.settings)
        url = inbox_of(ctx.settings, self.recipient)
        body = msgspec.json.encode({"token": token, "related": self.related})
        headers = {"content-type": "application/json", "idempotency-key": header_of(ctx.idempotency_key)}
        call = HttpCall("POST", url, headers, body, self.timeout, max_body=4096)
        reply = await send(call, ctx.settings, Secrets(ctx.settings))
        if not 200 <= reply.status < 300:
            detail = text_of(reply.body)[:MAX_REFUSAL_TEXT].strip()
            what = f"the inbox of {self.recipient} answered {reply.status}"
            refuse(f"{what}: {detail}" if detail else what, reply.status, reply.headers.get("retry-after"))
        return {"recipient": self.recipient, "status": reply.status}


def token_of(results: dict[int, Any]) -> str:
    """The token that a task before this one made. Raises PermanentError if there is not exactly one."""
    found = {r["token"] for r in results.values() if isinstance(r, dict) and isinstance(r.get("token"), str)}
    if len(found) != 1:
        raise PermanentError(
            f"there are {len(found)} tokens in the results of the tasks before this one, instead of one"
        )
    return str(found.pop())


def inbox_of(settings: Any, recipient: str) -> str:
    """Where a recipient takes actions. Raises PermanentError."""
    url: str = filled(settings, "actions", "inbox", INBOX, recipient=recipient)
    return url
