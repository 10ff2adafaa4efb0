"""A worker's metrics for OpenTelemetry: instruments that read its registry when they are asked.

Counters and gauges are observable instruments. OpenTelemetry has no observable histogram, so histograms join the
others on their way to the exporter; a meter provider of the program's own does not have them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics as api
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)

from scheduler.errors import ConfigError
from scheduler.telemetry import metrics, providers

if TYPE_CHECKING:
    from scheduler.config.model import Otel

SCOPE = "schedd"  # of the instruments
Families = Callable[[], Iterable[metrics.Family]]
_lock = threading.Lock()
_exports: weakref.WeakKeyDictionary[Any, Instruments] = weakref.WeakKeyDictionary()
# The names of the conventions, where there is one: a metric, its unit, and further attributes.
_CONVENTIONS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    metrics.ATTEMPTS.name: (
        "messaging.client.consumed.messages",
        "{message}",
        {"messaging.system": "schedd", "messaging.operation.name": "process"},
    ),
    metrics.ATTEMPT_DURATION.name: (
        "messaging.process.duration",
        "s",
        {"messaging.system": "schedd", "messaging.operation.name": "process"},
    ),
}
_LABELS = {"queue": "messaging.destination.name", "kind": "schedd.task.kind", "outcome": "schedd.task.outcome"}


class MetricsSource:
    """A worker whose metrics are exported. ``read``: its families; none before it has started."""

    def __init__(self) -> None:
        self.read: Families = tuple


class Instruments:
    """The instruments of one meter provider, for all workers of this process."""

    def __init__(self) -> None:
        self.sources: weakref.WeakSet[MetricsSource] = weakref.WeakSet()
        self._began = time.time_ns()

    def register(self, meter: api.Meter) -> None:
        """Make the observable instruments."""
        for metric in metrics.WORKER_METRICS:
            name, unit, _ = otel_name(metric)
            if metric.type == "counter":
                meter.create_observable_counter(name, [self._callback(metric)], unit, metric.help)
            elif metric.type == "gauge":
                meter.create_observable_gauge(name, [self._callback(metric)], unit, metric.help)

    def _callback(self, metric: metrics.Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            values: dict[tuple[str, ...], float] = {}
            for family in self._families(metric):
                for sample in family.samples:
                    values[sample.labels] = values.get(sample.labels, 0) + sample.value
            return [Observation(value, attributes_of(metric, labels)) for labels, value in values.items()]

        return observe

    def _families(self, metric: metrics.Metric) -> list[metrics.Family]:
        return [family for source in list(self.sources) for family in source.read() if family.metric is metric]

    def histograms(self) -> list[Metric]:
        """The histograms as the exporter takes them."""
        now = time.time_ns()
        return [
            Metric(*self._described(metric), Histogram(points, AggregationTemporality.CUMULATIVE))
            for metric in metrics.WORKER_METRICS
            if metric.type == "histogram" and (points := self._points(metric, now))
        ]

    @staticmethod
    def _described(metric: metrics.Metric) -> tuple[str, str, str]:
        name, unit, _ = otel_name(metric)
        return name, metric.help, unit

    def _points(self, metric: metrics.Metric, now: int) -> list[HistogramDataPoint]:
        found: dict[tuple[str, ...], tuple[list[int], float]] = {}
        for family in self._families(metric):
            for one in family.distributions:
                counts, total = found.get(one.labels, ([0] * len(one.counts), 0.0))
                found[one.labels] = ([a + b for a, b in zip(counts, one.counts, strict=True)], total + one.total)
        return [
            HistogramDataPoint(
                attributes=attributes_of(metric, labels),
                start_time_unix_nano=self._began,
                time_unix_nano=now,
                count=sum(counts),
                sum=total,
                bucket_counts=counts,
                explicit_bounds=list(metrics.BUCKETS),
                min=None,  # type: ignore[arg-type]  # they are not kept; OTLP does without
                max=None,  # type: ignore[arg-type]
            )
            for labels, (counts, total) in found.items()
        ]


class _WithHistograms(MetricExporter):
    """Exports what the reader has collected, and the histograms with it."""

    def __init__(self, inner: MetricExporter, instruments: Instruments) -> None:
        super().__init__()
        self._inner = inner
        self._instruments = instruments

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        histograms = self._instruments.histograms()
        parts = [
            ResourceMetrics(
                part.resource,
                [
                    ScopeMetrics(scope.scope, [*scope.metrics, *histograms], scope.schema_url)
                    if scope.scope.name == SCOPE
                    else scope
                    for scope in part.scope_metrics
                ],
                part.schema_url,
            )
            for part in metrics_data.resource_metrics
        ]
        return self._inner.export(MetricsData(parts), timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._inner.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._inner.shutdown(timeout_millis, **kwargs)


def otel_name(metric: metrics.Metric) -> tuple[str, str, Mapping[str, str]]:
    """A metric's name, unit and further attributes: those of the conventions, else its own with dots."""
    known = _CONVENTIONS.get(metric.name)
    if known is not None:
        return known
    name = metric.name.removesuffix("_total")
    unit = "s" if name.endswith("_seconds") else "1"
    return f"schedd.{name.removesuffix('_seconds').removeprefix('schedd_')}", unit, {}


def attributes_of(metric: metrics.Metric, labels: tuple[str, ...]) -> dict[str, str]:
    """The attributes of one value."""
    given = {_LABELS.get(name, f"schedd.{name}"): value for name, value in zip(metric.labels, labels, strict=True)}
    return {**otel_name(metric)[2], **given}


def export_metrics(options: Otel, source: MetricsSource) -> Any:
    """Have the metrics of ``source`` exported, as long as it lives. Returns the meter provider.

    By the program's own provider, if it has set one; else by one of schedd's, which becomes the process's. Raises
    ConfigError if the exporter is missing.
    """
    with _lock:
        provider: Any = api.get_meter_provider()
        instruments = _exports.get(provider)
        if instruments is None:
            instruments = Instruments()
            if not isinstance(provider, MeterProvider):
                provider = _own_provider(options, instruments)
                api.set_meter_provider(provider)
            instruments.register(provider.get_meter(SCOPE))
            _exports[provider] = instruments
        instruments.sources.add(source)
        return provider


def _own_provider(options: Otel, instruments: Instruments) -> MeterProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError:
        raise ConfigError(providers.MISSING) from None
    exporter = OTLPMetricExporter(
        endpoint=providers.signal_url(options, "metrics"), timeout=int(providers.EXPORT_TIMEOUT_S)
    )
    reader = PeriodicExportingMetricReader(_WithHistograms(exporter, instruments))
    return MeterProvider([reader], providers.resource(options), shutdown_on_exit=False)
