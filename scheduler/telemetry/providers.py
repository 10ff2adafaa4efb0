"""Where spans go: the program's own tracer provider, else one of schedd's that exports over OTLP."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from scheduler.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Tracer, TracerProvider

    from scheduler.config.model import Otel

MISSING = "OpenTelemetry is not installed: pip install 'schedd[otel]'"
MAX_QUEUED_SPANS = 4_096  # of the exporter; more are dropped, and the tasks go on
MAX_BATCH = 512  # spans of one request
EXPORT_EVERY_MS = 1_000
EXPORT_TIMEOUT_S = 5.0  # of one request, its retries included
FLUSH_S = 2.0  # at a stop
_lock = threading.Lock()
log = logging.getLogger("scheduler.telemetry")


def tracer_provider(options: Otel) -> TracerProvider:
    """The provider of the program, if it has set one; else one of schedd's, which becomes the process's.

    Raises ConfigError if OpenTelemetry is missing, or if the program's provider is not the SDK's.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        raise ConfigError(MISSING) from None
    with _lock:
        present = trace.get_tracer_provider()
        if isinstance(present, TracerProvider):
            return present
        if not isinstance(present, trace.ProxyTracerProvider):
            raise ConfigError(
                f"otel: this program's tracer provider is {type(present).__qualname__}; schedd needs the "
                "TracerProvider of opentelemetry-sdk, or none, and makes its own then"
            )
        made = _own_provider(options)
        trace.set_tracer_provider(made)
        return made


def _own_provider(options: Otel) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError(MISSING) from None
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

    # A handler's own spans belong to its attempt's: those of an attempt that is not traced are not written.
    made = TracerProvider(ParentBased(ALWAYS_OFF), resource(options), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=signal_url(options, "traces"), timeout=EXPORT_TIMEOUT_S)
    made.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=MAX_QUEUED_SPANS,
            max_export_batch_size=MAX_BATCH,
            schedule_delay_millis=EXPORT_EVERY_MS,
        )
    )
    atexit.register(flush, [made])
    return made


def resource(options: Otel) -> Resource:
    """What the spans and metrics are of; ``OTEL_RESOURCE_ATTRIBUTES`` adds to it."""
    from opentelemetry.sdk.resources import Resource

    from scheduler import __version__

    return Resource.create({"service.name": options.service, "service.version": __version__})


def signal_url(options: Otel, signal: str) -> str | None:
    """Where a signal goes; None: where the variables ``OTEL_EXPORTER_OTLP_…`` say."""
    return None if options.endpoint is None else f"{options.endpoint.rstrip('/')}/v1/{signal}"


def deciding_tracer(provider: TracerProvider, scope: str = "schedd") -> Tracer:
    """A tracer whose spans are all written: schedd decides before it makes one. Only the caller has this one."""
    import copy

    from opentelemetry.sdk.trace import Tracer
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    from scheduler import __version__

    made = copy.copy(provider.get_tracer(scope, __version__ if scope == "schedd" else None))
    if not isinstance(made, Tracer):
        raise ConfigError("otel: the SDK is switched off (OTEL_SDK_DISABLED): leave [otel] enabled out, too")
    made.sampler = ALWAYS_ON
    return made


class Flushes(Protocol):
    """A provider of spans or metrics."""

    def force_flush(self, timeout_millis: int = ..., /) -> bool: ...


def flush(waiting: Sequence[Flushes], seconds: float = FLUSH_S) -> bool:
    """Export what waits there, in at most so many seconds: a receiver that hangs holds up no stop.

    False if the time was not enough.
    """
    left = threading.Semaphore(0)

    def work(provider: Flushes) -> None:
        try:
            provider.force_flush(round(seconds * 1000))
        except Exception:
            log.warning("spans or metrics could not be exported", exc_info=True)
        left.release()

    try:
        for provider in waiting:
            threading.Thread(target=work, args=(provider,), name="schedd-otel-flush", daemon=True).start()
    except RuntimeError:  # the interpreter ends, or the system has no thread left
        return False
    until = time.monotonic() + seconds
    return all(left.acquire(timeout=max(0.0, until - time.monotonic())) for _ in waiting)
