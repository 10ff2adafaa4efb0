"""config.example.toml names every setting, with its default, under a line that explains it."""

from __future__ import annotations

import re
from pathlib import Path

from scheduler.config.load import load
from scheduler.config.model import KINDS

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"
ENTRIES = ("alerts.sinks.ops.", "sources.orders.", "sinks.shop.", "executors.batch.")
SETTING = re.compile(r"#?(\w+) = ")


def settings_with_line_before() -> dict[str, str]:
    found, section, before = {}, "", ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if line.startswith(("[", "#[")):
            section = line.strip("#[]")
        elif match := SETTING.match(line):
            found[f"{section}.{match[1]}"] = before
        before = line
    return found


def test_every_setting_is_there_and_explained() -> None:
    found = settings_with_line_before()
    assert {name for name in found if not name.startswith(ENTRIES)} == set(KINDS)
    assert all(before.startswith("# ") and len(before) > 10 for before in found.values()), found


def test_the_values_are_the_defaults() -> None:
    config, nothing = load(str(EXAMPLE), environ={}), load("/dev/null", environ={})
    for name in KINDS:
        assert config.get(name) == nothing.get(name), name


def test_what_is_commented_out_fits_too(tmp_path: Path) -> None:
    text = re.sub(r"^#(\w+ = |\[)", r"\1", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = re.sub(r"^(\w+ = )\[\]  # (\[.*\])$", r"\1\2", text, flags=re.MULTILINE)
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    config = load(str(file), environ={})
    assert {name for name in config.origins if not name.startswith(ENTRIES)} == set(KINDS)
    assert config.alerts.sinks["ops"].type == "slack"
    assert (config.sources["orders"].kind, config.sinks["shop"].max_attempts) == ("TakeOrder", 20)
    assert config.tasks.state == "myapp.state:make"
    assert config.tasks.modules == ("myapp.jobs",)
