"""Splits messages into batches that a transport takes: by their number, and by their bytes with some headroom. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scheduler.transports.ports import Limits, Outgoing

HEADROOM = 0.02  # of each limit in bytes: transports count more than the body, and not all say how much


def too_large(one: Outgoing, limits: Limits) -> str | None:
    """Why a message can never be published there; None if it can."""
    most = _room(_least(limits.max_size, limits.max_batch_size))
    size = one.size + limits.overhead
    return None if most is None or size <= most else f"the message has {size:,} bytes, more than {most:,}"


def pack(messages: Sequence[Outgoing], limits: Limits, most: int) -> Iterator[list[Outgoing]]:
    """Batches in the order of the messages. Each of these fits by itself. ``most``: messages of a batch."""
    most, room = min(most, limits.max_batch), _room(limits.max_batch_size)
    batch: list[Outgoing] = []
    size = 0
    for one in messages:
        more = one.size + limits.overhead
        if batch and (len(batch) >= most or (room is not None and size + more > room)):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += more
    if batch:
        yield batch


def _least(*limits: int | None) -> int | None:
    return min((one for one in limits if one is not None), default=None)


def _room(limit: int | None) -> int | None:
    return None if limit is None else int(limit * (1 - HEADROOM))
