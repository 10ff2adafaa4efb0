"""Messages from child processes. Decoding checks them: a handler may have written into the socket.

On the wire each is a list: its name, then its fields.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from scheduler.engine.child.protocol import FrameDecoder
from scheduler.model.outcome import Outcome
from scheduler.model.outgoing import OUTBOX, PREFIX
from scheduler.model.state import TaskState
from scheduler.ports import FOREVER
from scheduler.telemetry.notes import SpanNote

Number = Annotated[int, Meta(ge=0, le=FOREVER)]


class GarbledError(ValueError):
    """A child sent what is no message, or not its own."""


class ChildMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Any of these."""


class Ready(ChildMessage, tag="ready"):
    """The child has imported what it needs."""


class UnfitMessage(ChildMessage, tag="unfit"):
    """The child could not get ready."""

    why: str


class Ask(ChildMessage, tag="ask"):
    """An attempt, or the child itself (job 0), asks something of the engine."""

    job: Number
    asked: Number
    method: str
    args: list[Any]


class StartMessage(ChildMessage, tag="start"):
    """A job begins. ``at``: microseconds, for an attempt."""

    job: Number
    at: Number


class OutputMessage(ChildMessage, tag="output"):
    """Output of a job."""

    job: Number
    text: str


class LogMessage(ChildMessage, tag="log"):
    """A record that a job has logged."""

    job: Number
    fields: dict[str, Any]


class Stands(ChildMessage, tag="stands"):
    """Where a job stands, and whether it has moved since it was last asked."""

    job: Number
    moved: bool
    where: str
    stack: str


class TracedMessage(ChildMessage, tag="traced"):
    """What a traced attempt noted: a span inside it, or its own."""

    job: Number
    note: SpanNote


class Decided(ChildMessage, tag="decided"):
    """A handler has failed with this outcome. Its hook does not change it."""

    job: Number
    outcome: Outcome


class Over(ChildMessage):
    """A job has ended. ``leaving``: why the child takes no more, if so."""

    job: Number
    leaving: str | None


class DoneMessage(Over, tag="done"):
    """An attempt."""

    outcome: Outcome


class Computed(Over, tag="computed"):
    """A function. ``value``: pickled, what it returned or raised."""

    fine: bool
    value: bytes


class Hooked(Over, tag="hooked"):
    """A hook of an attempt whose own process had died."""


_decoder = msgspec.msgpack.Decoder(
    Ready
    | UnfitMessage
    | Ask
    | StartMessage
    | OutputMessage
    | LogMessage
    | Stands
    | TracedMessage
    | Decided
    | DoneMessage
    | Computed
    | Hooked
)


def frames_of_child() -> FrameDecoder:
    """A decoder for the messages of one child."""
    return FrameDecoder(_decoder)


def checked(outcome: Outcome, claimed: Any) -> Outcome:
    """The outcome that a child sent. Raises GarbledError for one that cannot be this attempt's."""
    if outcome[:3] != (claimed.id, claimed.claim, claimed.attempt):
        raise GarbledError(f"it reported the end of task {outcome.task_id}, which it does not run")
    times = (outcome.claimed_at, outcome.started_at, outcome.finished_at, outcome.run_at)
    if outcome.state not in _STATES or not all(at is None or 0 <= at <= FOREVER for at in times):
        raise GarbledError("it reported an end with a state or a time that there is not")
    failure = outcome.failure
    texts = (outcome.result, outcome.log, *((failure.text, failure.error_class) if failure is not None else ()))
    if outcome.refund not in (0, 1) or any(text is not None and "\0" in text for text in texts):
        raise GarbledError("it reported an end that cannot be stored")
    publish = outcome.publish
    if publish is not None and (publish.queue != OUTBOX or not publish.kind.startswith(PREFIX) or publish.edges):
        raise GarbledError("it reported an end with something else than a message to a sink")
    return outcome


_STATES = frozenset(state.code for state in TaskState)
