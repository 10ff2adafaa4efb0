"""The dashboard, the rules and the guide name metrics and labels that there are; promtool accepts the rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from support.dashboards import DASHBOARD, METRICS, ROOT, RULE_TESTS, RULES, expressions, metric_of, named, panels

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.needs("promtool")
OF_PROMETHEUS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}  # or of its client
OF_SCRAPES = {"job", "instance"}


def test_each_name_and_label_is_one_that_is_exposed() -> None:
    found = expressions()
    assert len(found) > 60
    for expression in found:
        metrics = named(expression)
        assert metrics, expression
        labels = {"le", *OF_SCRAPES}
        for name, selected in metrics:
            metric = METRICS.get(metric_of(name))
            assert metric is not None or name in OF_PROMETHEUS, f"{name} in {expression}"
            own = set(metric.labels if metric else ())
            assert selected <= own | OF_SCRAPES | {"le"}, f"{name} has no label {selected - own}"
            assert metric is None or metric.type != "histogram" or name != metric.name, f"{name}: no such series"
            labels |= own
        for group in re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", expression):
            assert set(re.split(r",\s*", group)) <= labels, expression


def test_counters_are_read_as_rates_and_gauges_are_not() -> None:
    """An average of a counter, or the rate of a gauge, means nothing."""
    for expression in expressions():
        for call, name in re.findall(r"\b(\w+)\(((?:schedd|process)_\w+)", expression):
            counts = name.endswith(("_total", "_bucket", "_sum", "_count"))
            assert (call in ("rate", "increase")) is counts, expression


def test_each_metric_is_shown_or_watched() -> None:
    used = {metric_of(name) for expression in expressions() for name, _ in named(expression)}
    assert set(METRICS) <= used


def test_the_dashboard_fits_any_grafana() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert (board["uid"], board["id"]) == (None, None)
    assert [one["name"] for one in board["templating"]["list"]] == ["datasource", "job", "kind", "queue"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, place in enumerate(places):
        for other in places[one + 1 :]:
            apart = (
                place["x"] + place["w"] <= other["x"]
                or other["x"] + other["w"] <= place["x"]
                or place["y"] + place["h"] <= other["y"]
                or other["y"] + other["h"] <= place["y"]
            )
            assert apart, (place, other)


def test_the_guide_lists_each_metric_with_its_labels() -> None:
    guide = (ROOT / "docs" / "guides" / "monitoring.md").read_text(encoding="utf-8")
    rows = [line for line in guide.splitlines() if line.startswith("| `schedd_")]
    listed = {name: row for row in rows for name in re.findall(r"`(schedd_\w+)`", row.split("|")[1])}
    assert set(listed) == set(METRICS)
    for name, metric in METRICS.items():
        cells = [cell.strip() for cell in listed[name].split("|")[1:-1]]
        assert ", ".join(metric.labels) in cells[1:], name
        assert len(cells) == 3 or cells[1] == metric.type, name


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "schedd.rules.yml"),
        ("test", "rules", "schedd.rules.test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
)
def test_promtool_finds_nothing(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([str(PROMTOOL), *arguments], cwd=RULES.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_has_a_test() -> None:
    rules = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
    tested = re.findall(r"^ {8}alertname: (\w+)", RULE_TESTS.read_text("utf-8"), re.MULTILINE)
    assert len(rules) == len(set(rules)) == 22
    assert sorted(tested) == sorted(rules)
    runs = re.findall(r"alertname: (\w+), exp_alerts: \[\]", RULE_TESTS.read_text("utf-8"))
    assert sorted(runs) == sorted(rules)


def test_commands_in_the_rules_exist() -> None:
    from click import Context, Group

    from scheduler.cli.root import root

    for line in re.findall(r"`schedctl ([^`]*)`", RULES.read_text(encoding="utf-8")):
        words = line.replace("{{ $labels.kind }}", "KIND").replace("{{ $labels.name }}", "NAME").split()
        command: Any = root
        while isinstance(command, Group) and words:
            command = command.get_command(Context(command), words.pop(0))
            assert command is not None, line
        options = {name for one in command.params for name in one.opts}
        assert {word for word in words if word.startswith("--")} <= options, line
