"""Metrics as Prometheus reads them: a custom collector of prometheus-client over what the registry has counted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from scheduler.errors import ConfigError
from scheduler.telemetry.metrics import BUCKETS, Family

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

Read = Callable[[], Iterable[Family]]
_BOUNDS = (*map(str, BUCKETS), "+Inf")


def require(what: str) -> None:
    """Check that prometheus-client is installed. ``what``: needs it. Raises ConfigError."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(f"{what} needs prometheus-client: pip install 'schedd[metrics]'")


class Collector:
    """Gives prometheus-client all metrics that ``read`` returns, each time it asks."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterator[Any]:
        """The metrics that have a value."""
        from prometheus_client import core

        for metric, samples, distributions in self._read():
            if metric.type == "histogram":
                histogram = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                for one in distributions:
                    histogram.add_metric(one.labels, list(zip(_BOUNDS, accumulate(one.counts), strict=True)), one.total)
                if distributions:
                    yield histogram
            elif samples:
                family = (core.CounterMetricFamily if metric.type == "counter" else core.GaugeMetricFamily)(
                    metric.name, metric.help, labels=metric.labels
                )
                for labels, value in samples:
                    family.add_metric(labels, value)
                yield family


def make_registry(read: Read, *, process: bool) -> CollectorRegistry:
    """A registry of prometheus-client of these metrics; ``process``: and of this process's memory, time and files."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    made = CollectorRegistry(auto_describe=False)
    made.register(Collector(read))
    if process:
        ProcessCollector(registry=made)
    return made


def render(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """What a scrape is answered, and its content type. ``accept``: the header of that name."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
