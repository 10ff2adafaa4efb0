"""Changes of a stored task, or of a copy of one: what may be changed, and its checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET

from scheduler.errors import ConfigError, PayloadError
from scheduler.model.names import check_name
from scheduler.model.priority import Priority
from scheduler.model.retry import RetryPolicy
from scheduler.model.times import instant_us, span_us
from scheduler.operations.desk import Desk
from scheduler.operations.new_task import encode_headers
from scheduler.operations.payloads import of_published, of_registered, published_kind
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.patch import Make, NewPayload, Patch, StoredPayload


class Changes(TypedDict, total=False):
    """What may be changed of a stored task.

    ``at``: not before this aware datetime; ``after``: not before this long from now (seconds or timedelta).
    ``payload``: another one, an instance of the kind or all its fields; ``fields``: some fields, the others stay.
    ``retry``: None is one attempt. ``timeout``: seconds or timedelta, None for the worker's default. ``headers``: all
    of them.
    """

    at: datetime
    after: float | timedelta | str
    priority: Priority | str
    queue: str
    payload: Any
    fields: Mapping[str, Any]
    headers: Mapping[str, Any]
    retry: RetryPolicy | None
    timeout: float | timedelta | str | None


def patch_of(desk: Desk, given: Changes, *, required: bool = True) -> Callable[[Tx], Patch]:
    """Check changes. What it returns makes the patch of a transaction, in which payloads are checked.

    Raises ConfigError, PayloadError, InvalidScheduleError.
    """
    unknown = set(given) - Changes.__optional_keys__
    if unknown:
        raise ConfigError(
            f"a task has no {', '.join(sorted(unknown))} to change; "
            f"there are {', '.join(sorted(Changes.__optional_keys__))}"
        )
    if "at" in given and "after" in given:
        raise ConfigError("at and after exclude each other")
    if "payload" in given and "fields" in given:
        raise ConfigError("payload and fields exclude each other")
    if required and not given:
        raise ConfigError(f"say what to change: {', '.join(sorted(Changes.__optional_keys__))}")
    made = Patch(
        run_at=instant_us(given["at"], "at") if "at" in given else UNSET,
        delay=span_us(given["after"], "after") if "after" in given else UNSET,
        priority=int(Priority.parse(given["priority"])) if "priority" in given else UNSET,
        queue=check_name("queue", given["queue"]) if "queue" in given else UNSET,
        headers=encode_headers(given["headers"]) if "headers" in given else UNSET,
        retry=_retry(given["retry"]) if "retry" in given else UNSET,
        timeout=_timeout(given["timeout"]) if "timeout" in given else UNSET,
    )
    fields = given.get("fields")
    if fields is not None and not isinstance(fields, Mapping):
        raise PayloadError(f"fields must be a mapping, not {fields!r:.80}")
    if "payload" not in given and fields is None:
        return lambda _: made
    return lambda tx: msgspec.structs.replace(made, payload=payload_maker(desk, tx, given.get("payload"), fields))


def payload_maker(desk: Desk, tx: Tx, value: Any, fields: Mapping[str, Any] | None) -> Make:
    """Makes the new payload of a task: ``value``, or its own with other ``fields``.

    It is checked by the kind of this program, else by the one that workers have published. What it returns raises
    UnregisteredKindError, PayloadError.
    """

    def make(present: StoredPayload) -> NewPayload:
        registry = desk.registry
        kind = None if registry is None else registry.get(present.kind)
        if registry is None or kind is None:
            return of_published(published_kind(tx, present.kind), present, value, fields)
        return of_registered(registry, kind, present, value, fields)

    return make


def _retry(policy: RetryPolicy | None) -> tuple[str | None, int | None]:
    if policy is None:
        return None, 1
    if not isinstance(policy, RetryPolicy):
        raise ConfigError(f"retry must be a RetryPolicy or None, not {policy!r:.80}")
    return policy.to_json(), policy.max_attempts


def _timeout(given: float | timedelta | str | None) -> int | None:
    return None if given is None else span_us(given, "timeout", positive=True)
