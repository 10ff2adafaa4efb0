"""What a Scheduler cannot work with is refused when it is made, in one sentence; no file is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler import ConfigError, Scheduler


@pytest.mark.parametrize(
    ("says", "options"),
    [
        ("queues must be a list of names", {"queues": "mail"}),  # each letter would be a queue, and mail none
        ("queues must be a list of names", {"queues": []}),
        ("queues must be a list of names", {"queues": ["a b"]}),
        ("lease must be a number of seconds above 0, not nan", {"lease": float("nan")}),
        ("lease must be a number of seconds above 0, not inf", {"lease": float("inf")}),
        ("drain must be at least 0, not -1", {"drain": -1}),
        ("drain must be seconds or a timedelta, not '5'", {"drain": "5"}),
        ("max_concurrent_tasks must be a whole number of at least 0, not -1", {"max_concurrent_tasks": -1}),
        ("max_concurrent_tasks must be a whole number of at least 0, not 'x'", {"max_concurrent_tasks": "x"}),
        ("misfire_grace must be a number of seconds of at least 1, not 0", {"misfire_grace": 0}),
        ("graphs must be in-turn or short-first, not 'fast'", {"graphs": "fast"}),
        ("graphs_in must be a list of names", {"graphs": "short-first", "graphs_in": "etl"}),
        ("log_attempts must be notable or all, not 'some'", {"log_attempts": "some"}),
        ("pool high must be", {"pools": {"high": 5}}),
        ("no pool has a slot", {"pools": dict.fromkeys(("high", "medium", "low"), (0, 0))}),
        ("processes must be a whole number of at least 1, not 0", {"processes": 0}),
        ("process_grace must be a number of seconds above 0, not 0", {"process_grace": 0}),
        ("retention of success must be a number of seconds from 0", {"retention": {"success": "x"}}),
        ("store url must be a text such as sqlite:///schedd.db", {"url": Path("jobs.db")}),
    ],
)
def test_what_a_scheduler_refuses(says: str, options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        Scheduler(**{"url": f"sqlite:///{tmp_path / 'jobs.db'}"} | options)
    assert str(raised.value).startswith(says)
    assert list(tmp_path.iterdir()) == []


def test_what_it_takes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    Scheduler(url, queues=("mail", "*"), lease=0.5, drain=0, misfire_grace=1, pools={"high": (0, 0), "low": [1, 1]})  # type: ignore[dict-item]
