"""The names, types, labels and buckets of all metrics. Labels never hold ids, keys or error texts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scheduler.model.rollup import BOUNDS
from scheduler.ports import SECOND

MetricType = Literal["counter", "gauge", "histogram"]

BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""Upper bounds of the buckets of each histogram, in seconds: those that OpenTelemetry advises, and longer ones."""

_BOUNDS_US = tuple(round(bound * SECOND) for bound in BUCKETS)
BUCKET_OF_ROLLUP = tuple(bisect_left(_BOUNDS_US, bound) for bound in (*BOUNDS, BOUNDS[-1] + 1))
"""The bucket here of each bucket of a rollup. It is exact: each bound here is one of the rollups' bounds, too."""


def bucket_of(us: int) -> int:
    """The bucket of a span in microseconds: the first whose bound it does not exceed; the last has no bound."""
    return bisect_left(_BOUNDS_US, us)


class Metric(NamedTuple):
    """A metric. ``name``: as Prometheus shows it, with its unit, and ``_total`` for a counter."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value of a counter or gauge. ``labels``: their values, in the order of ``Metric.labels``."""

    labels: tuple[str, ...]
    value: float


class Distribution(NamedTuple):
    """One histogram. ``counts``: values by bucket, not cumulative; the last bucket has no bound. ``total``: their sum
    in seconds."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def number(self) -> int:
        """How many values there are."""
        return sum(self.counts)


class Family(NamedTuple):
    """A metric with all its values. ``samples`` of counters and gauges, ``distributions`` of histograms."""

    metric: Metric
    samples: Sequence[Sample] = ()
    distributions: Sequence[Distribution] = ()


# of one worker: the sum over all workers is the whole

ATTEMPTS = Metric(
    "schedd_attempts_total",
    "counter",
    "Attempts that ran here, by how they ended.",
    ("kind", "queue", "outcome"),
)
ATTEMPT_DURATION = Metric("schedd_attempt_duration_seconds", "histogram", "How long attempts ran.", ("kind", "queue"))
QUEUE_WAIT = Metric(
    "schedd_queue_wait_seconds",
    "histogram",
    "From when an attempt only wanted a worker to its start: no planned delay, no backoff; tasks without parents.",
    ("kind", "queue"),
)
DEAD_LETTERS_MADE = Metric(
    "schedd_dead_letters_total", "counter", "Tasks that failed for good and became dead letters.", ("kind",)
)
SLOTS = Metric("schedd_slots", "gauge", "Slots of this worker.", ("pool", "slot_type"))
SLOTS_BUSY = Metric(
    "schedd_slots_busy", "gauge", "Slots of this worker in which a handler runs.", ("pool", "slot_type")
)
ORPHANED_ATTEMPTS = Metric("schedd_orphaned_attempts", "gauge", "Attempts that run on although their claims were lost.")
LEASES_LOST = Metric("schedd_leases_lost_total", "counter", "How often other workers reclaimed what this one held.")
RECLAIMED = Metric("schedd_reclaimed_total", "counter", "Tasks that this worker reclaimed from dead workers.")
TIMEOUTS = Metric("schedd_timeouts_total", "counter", "Attempts that failed because they ran past their timeout.")
DIRECT_STARTS = Metric(
    "schedd_direct_starts_total", "counter", "Tasks that the program stored as claimed by its own worker."
)
CYCLE_DURATION = Metric("schedd_cycle_duration_seconds", "histogram", "How long dispatch cycles took.")
LOOP_AGE = Metric("schedd_loop_age_seconds", "gauge", "How long ago the engine's loop last went round.")
STORE_ERRORS = Metric(
    "schedd_store_errors_total", "counter", "Failed rounds of the engine's loop, by what was the matter.", ("class",)
)
STORE_UNREACHABLE = Metric("schedd_store_unreachable", "gauge", "1 while this worker cannot use the database, else 0.")
CAP_WAITS = Metric(
    "schedd_cap_waits_total", "counter", "Dispatch cycles in which a cap kept due tasks of a kind waiting.", ("kind",)
)
RATE_WAITS = Metric(
    "schedd_rate_waits_total",
    "counter",
    "Dispatch cycles in which a rate limit kept due tasks of a kind waiting.",
    ("kind",),
)
MESSAGES_RECEIVED = Metric(
    "schedd_messages_received_total", "counter", "Messages that were delivered here.", ("source",)
)
MESSAGES_SETTLED = Metric(
    "schedd_messages_settled_total",
    "counter",
    "Messages whose verdict the transport has taken: ack, retry, dead.",
    ("source", "verdict"),
)
MESSAGES_DEAD = Metric("schedd_messages_dead_total", "counter", "Messages that could become no task.", ("source",))
MESSAGES_PUBLISHED = Metric(
    "schedd_messages_published_total", "counter", "Messages that the transport has confirmed.", ("sink",)
)
MESSAGES_REFUSED = Metric(
    "schedd_messages_refused_total",
    "counter",
    "Tries to publish a message that the transport refused, or for which it was away.",
    ("sink",),
)
TRANSPORT_UNREACHABLE = Metric(
    "schedd_transport_unreachable", "gauge", "1 while a source or a sink cannot be used from here.", ("side", "name")
)
BUILD_INFO = Metric("schedd_build_info", "gauge", "Always 1.", ("version", "python", "store"))

WORKER_METRICS = (
    *(ATTEMPTS, ATTEMPT_DURATION, QUEUE_WAIT, DEAD_LETTERS_MADE, SLOTS, SLOTS_BUSY, ORPHANED_ATTEMPTS, LEASES_LOST),
    *(RECLAIMED, TIMEOUTS, DIRECT_STARTS, CYCLE_DURATION, LOOP_AGE, STORE_ERRORS, STORE_UNREACHABLE),
    *(CAP_WAITS, RATE_WAITS),
    *(MESSAGES_RECEIVED, MESSAGES_SETTLED, MESSAGES_DEAD, MESSAGES_PUBLISHED, MESSAGES_REFUSED, TRANSPORT_UNREACHABLE),
    BUILD_INFO,
)

ERROR_CLASSES = ("collided", "locked", "refused", "replaced", "unavailable", "unexpected")
"""Values of the label ``class`` of STORE_ERRORS."""
