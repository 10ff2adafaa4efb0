"""``stats``: how long tasks run and wait, and how many fail."""

from __future__ import annotations

import pytest

from scheduler.cli.stats import duration, percent
from support.bench import Bench

from .conftest import Ctl


def test_stats_by_kind(ctl: Ctl, live: Bench) -> None:
    live.ended("success")
    live.ended("success")
    live.ended("dead")
    live.jobs.stats()  # writes what was counted
    (row,) = ctl.json("stats")
    assert (row["kind"], row["attempts"], row["outcomes"]) == ("Step", 3, {"succeeded": 2, "dead": 1})
    assert row["failure_rate"] == pytest.approx(1 / 3)
    assert row["throughput"] > 0
    assert row["run_p50"] is not None
    text = ctl("stats", "Step", "--since", "2h").stdout
    assert " ".join(text.splitlines()[0].split()) == "KIND ATTEMPTS PER MIN FAILED P50 P95 P99 WAIT P50 WAIT P95"
    assert "33.3%" in text
    assert max(map(len, text.splitlines())) <= 80
    assert ctl.json("stats", "--queue", "elsewhere") == []
    assert ctl("stats", "--until", "1h", "--since", "2h", "--columns", "kind").exit_code == 0


def test_stats_of_what_is_not_there(ctl: Ctl, live: Bench) -> None:
    result = ctl("stats")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no attempt ended since" in result.stderr
    assert "no worker has registered a kind 'Stap'" in ctl("stats", "Stap").stderr
    assert "--until must be after --since" in ctl.fails(2, "stats", "--since", "1h", "--until", "2h")
    assert "--since" in ctl.fails(2, "stats", "--since", "yesterday")


def test_all_kinds_together_are_the_last_row(ctl: Ctl, live: Bench) -> None:
    live.ended("success")
    live.jobs.stats()  # writes what was counted
    live.execute(
        "INSERT INTO schedd_rollups (span, at, kind, queue, outcome, measure, bucket, number, total) "
        "SELECT span, at, 'Another', queue, outcome, measure, bucket, number + 1, total FROM schedd_rollups"
    )
    assert [(row["kind"], row["attempts"]) for row in ctl.json("stats")] == [("Another", 2), ("Step", 1), (None, 3)]
    assert [line.split()[0] for line in ctl("stats").stdout.splitlines()] == ["KIND", "Another", "Step", "all"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.00005, "0.05ms"),
        (0.0123, "12.3ms"),
        (0.75, "750ms"),
        (1.5, "1.5s"),
        (90.0, "90s"),
        (720.0, "12m"),
        (10_800.0, "3h"),
        (864_000.0, "10d"),
    ],
)
def test_spans_are_short(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_shares_do_not_round_to_none_or_all() -> None:
    assert [percent(share) for share in (0.0, 0.0001, 0.5, 0.9999, 1.0)] == ["0%", "<0.1%", "50.0%", "99.9%", "100%"]
