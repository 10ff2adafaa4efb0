"""``ctx.publish()``: a message that is committed with a handler's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from scheduler.engine.durable.calls import StepScope, current_scope
from scheduler.errors import ConfigError
from scheduler.model.envelope import idempotency_key
from scheduler.model.outgoing import outgoing_spec, sink_kind
from scheduler.model.spec import MAX_KEY, TaskId
from scheduler.model.texts import within
from scheduler.model.times import span_us
from scheduler.store import outbox
from scheduler.store.db.tx import CallersTx

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.engine.attempt.attempt import Attempt

OUTSIDE = (
    "ctx.publish() belongs into `with ctx.transaction():`, whose commit lets the message go out; to tell of a success, "
    'give the task type on_success="sinks.NAME"; jobs.publish() has a transaction of its own'
)


def publish(
    connection: sa.Connection, scope: StepScope, now: int, sink: str, payload: Any, given: Mapping[str, Any]
) -> TaskId[Any]:
    """Store a message in the open transaction of an attempt. Raises PayloadError, ConfigError."""
    attempt = scope.attempt
    options = dict(given)
    key, group = options.pop("key"), options.pop("group")
    delay, headers = options.pop("delay"), options.pop("headers")
    c = attempt.claimed
    own = idempotency_key(c.key, c.original_id, c.id, c.epoch)
    if key is None:  # the same when the handler runs again, which then leaves out the steps that are recorded
        scope.published += 1
    place = f"{scope.label}:{scope.published}" if scope.label else str(scope.published)
    fields = {
        **options,
        "correlation_id": c.correlation or str(c.id),
        "causation_id": str(c.id),
        "payload_inline": payload,
    }
    spec = outgoing_spec(
        sink,
        within(f"{c.kind}:{own}:{sink_kind(sink)}:{place}", MAX_KEY) if key is None else key,
        fields,
        now=now,
        headers=headers,
        group=group,
        delay=span_us(delay, "delay"),
        keyed=key is not None,
    )
    return outbox.put(CallersTx(connection, now), [spec], [group])[0]


def options(
    key: str | None = None,
    message_type: str | None = None,
    subject: str | None = None,
    group: str | None = None,
    sequence: int | None = None,
    payload_ref: str | None = None,
    headers: Mapping[str, Any] | None = None,
    schema_version: int = 1,
    delay: float | timedelta | str = 0,
) -> dict[str, Any]:
    """What ``ctx.publish()`` takes beside the sink and the payload, as ``jobs.publish()`` has it."""
    return dict(locals())


def opened(attempt: Attempt) -> StepScope:
    """The attempt's open transaction in which the code is. Raises ConfigError."""
    scope = current_scope.get()
    if scope is None or scope.attempt is not attempt or scope.connection is None:
        scope = attempt.transaction  # for code in a thread of its own
    if scope is None:
        raise ConfigError(OUTSIDE)
    return scope
