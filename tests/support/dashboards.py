"""What the shipped dashboard and rules say: their panels, expressions, metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from scheduler.telemetry.metrics import WORKER_METRICS
from scheduler.telemetry.store_figures import STORE_METRICS

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "observability"
DASHBOARD = PLACE / "grafana" / "schedd.json"
RULES = PLACE / "prometheus" / "schedd.rules.yml"
RULE_TESTS = PLACE / "prometheus" / "schedd.rules.test.yml"
METRICS = {metric.name: metric for metric in (*WORKER_METRICS, *STORE_METRICS)}


def panels() -> list[dict[str, Any]]:
    """The panels that show something."""
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions() -> list[str]:
    in_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    lines = RULES.read_text(encoding="utf-8")
    in_rules = re.findall(r"expr: (?:\|\n((?: {10}.*\n)+)|(.*))", lines)
    return in_panels + [block or line for block, line in in_rules]


def named(expression: str) -> list[tuple[str, set[str]]]:
    """The metrics of an expression, each with the labels that it selects by."""
    found = re.findall(r"\b((?:schedd|process)_\w+|up)\b(?:\{([^}]*)\})?", expression)
    return [(name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels))) for name, labels in found]


def metric_of(name: str) -> str:
    """The metric that a series belongs to."""
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if base in METRICS and METRICS[base].type == "histogram" else name
