"""A worker's metrics as a real OTLP receiver gets them, and through a meter provider of the program."""

from __future__ import annotations

from typing import Any

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from scheduler import Context, PermanentError, Scheduler, task
from scheduler.telemetry.metrics import BUCKETS, WORKER_METRICS
from scheduler.telemetry.otel_metrics import otel_name
from scheduler.testing import drain
from support.databases import Database, one_database
from support.otlp import Receiver, attributes_in


@task
def fine(ctx: Context) -> None:
    pass


@task
def dies(ctx: Context) -> None:
    raise PermanentError("no")


def drained(database: Database, **otel: Any) -> Scheduler:
    jobs = Scheduler.for_testing(url=database.url, otel={"ratio": 0, **otel})
    jobs.register(fine)
    jobs.register(dies)
    for kind in (fine, fine, dies):
        jobs.task(kind).queue("mail").schedule()
    drain(jobs)
    return jobs


def test_metrics_are_exported(database: Database, otlp: Receiver) -> None:
    drained(database, endpoint=otlp.url, service="shop").close()
    (resource,) = otlp.metrics[-1].resource_metrics
    assert attributes_in(resource.resource.attributes)["service.name"] == "shop"
    found = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    consumed = {
        (attributes["schedd.task.kind"], attributes["schedd.task.outcome"]): point.as_double or point.as_int
        for point in found["messaging.client.consumed.messages"].sum.data_points
        if (attributes := attributes_in(point.attributes))["messaging.destination.name"] == "mail"
    }
    assert consumed == {("fine", "succeeded"): 2, ("dies", "dead"): 1}
    duration = found["messaging.process.duration"]
    assert duration.unit == "s"
    counts = {attributes_in(p.attributes)["schedd.task.kind"]: p.count for p in duration.histogram.data_points}
    assert counts == {"fine": 2, "dies": 1}
    point = duration.histogram.data_points[0]
    assert tuple(point.explicit_bounds) == BUCKETS
    assert sum(point.bucket_counts) == point.count
    assert found["schedd.dead_letters"].sum.is_monotonic
    assert found["schedd.slots"].WhichOneof("data") == "gauge"
    names = {otel_name(metric)[0] for metric in WORKER_METRICS}
    assert set(found) <= names
    assert "schedd.queue_wait" in found


@one_database
def test_nothing_is_exported_if_metrics_are_off(database: Database, otlp: Receiver) -> None:
    drained(database, endpoint=otlp.url, metrics=False).close()
    assert otlp.metrics == []


@one_database
def test_a_programs_own_meter_provider_is_used(database: Database, otlp: Receiver) -> None:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    jobs = drained(database, endpoint=otlp.url)
    data = reader.get_metrics_data()
    assert data is not None
    found = {m.name: m for part in data.resource_metrics for scope in part.scope_metrics for m in scope.metrics}
    jobs.close()
    points = found["messaging.client.consumed.messages"].data.data_points
    assert sum(point.value for point in points) == 3
    assert otlp.metrics == []


@one_database
def test_two_schedulers_of_one_process_share_their_instruments(database: Database, otlp: Receiver) -> None:
    first, second = drained(database, endpoint=otlp.url), drained(database, endpoint=otlp.url)
    second.close()
    (resource,) = otlp.metrics[-1].resource_metrics
    found = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    points = found["messaging.client.consumed.messages"].sum.data_points
    assert sum(point.as_double or point.as_int for point in points) == 6
    assert sum(point.count for point in found["messaging.process.duration"].histogram.data_points) == 6
    first.close()
