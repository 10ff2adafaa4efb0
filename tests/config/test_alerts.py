"""``[alerts]``: rules with thresholds, sinks that a user names, their secrets, and mistakes in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.config.load import changed, describe, load
from scheduler.config.model import Config
from scheduler.errors import ConfigError

SLACK = '[alerts.sinks.ops]\ntype = "slack"\nurl = "https://hooks.example/T0/secret-path"\n'


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str, **environ: str) -> Config:
    Path("config.toml").write_text(text, encoding="utf-8")
    return load("config.toml", environ)


def test_nothing_is_evaluated_without_a_sink() -> None:
    assert not read("").alerts.on
    assert read("[alerts]\nenabled = true").alerts.on
    assert read(SLACK).alerts.on
    assert not read(f"[alerts]\nenabled = false\n{SLACK}").alerts.on


def test_a_file_the_environment_and_credentials_give_a_sinks_settings(tmp_path: Path) -> None:
    secrets = tmp_path / "credentials"
    secrets.mkdir()
    (secrets / "alerts.sinks.hook.secret").write_text("from a credential\n")
    (secrets / "alerts.sinks.hook.url").write_text("https://hook.example/1")
    config = read(
        SLACK + "[alerts.rules.retry_rate]\nabove = 0.5\nbelow = 0.25\n[alerts.rules.long_run]\nenabled = false\n",
        CREDENTIALS_DIRECTORY=str(secrets),
        SCHEDD_ALERTS__SINKS__HOOK__TYPE="webhook",
        SCHEDD_ALERTS__SINKS__OPS__RULES="dead_letters, unserved",
        SCHEDD_ALERTS__RULES__BACKLOG_AGE__ABOVE="10m",
    )
    hook, ops = config.alerts.sinks["hook"], config.alerts.sinks["ops"]
    assert (hook.type, hook.url, hook.secret) == ("webhook", "https://hook.example/1", "from a credential")
    assert ops.takes("unserved")
    assert not ops.takes("retry_rate")
    assert (config.alerts.rules.retry_rate.above, config.alerts.rules.backlog_age.above) == (0.5, 600)
    assert not config.alerts.rules.long_run.enabled
    assert config.origins["alerts.sinks.hook.secret"] == "credential alerts.sinks.hook.secret"


def test_config_check_shows_sinks_without_their_secrets() -> None:
    shown = {one.name: one for one in describe(read(SLACK))}
    assert shown["alerts.sinks.ops.type"].text == '"slack"'
    assert shown["alerts.sinks.ops.url"].value == "***"
    assert "secret-path" not in str(shown)


def test_a_reload_names_what_has_changed() -> None:
    one, other = read(SLACK), read(SLACK.replace("ops", "night") + "timeout = 20\n")
    assert set(changed(one, other)) == {
        f"alerts.sinks.{name}.{setting}"
        for name in ("ops", "night")
        for setting in ("type", "url", "secret", "token", "to", "command", "rules", "timeout")
    }
    assert changed(one, read(SLACK + "timeout = 20\n")) == ["alerts.sinks.ops.timeout"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[alerts.sinks.ops]\ntype = "slack"', "alerts.sinks.ops.url (default): a sink of type slack needs it"),
        ('[alerts.sinks.Ops]\ntype = "slack"', "a name of small letters"),
        ('[alerts.sinks]\nops = "slack"', "expected a section [alerts.sinks.NAME]"),
        ('[alerts.sinks.ops]\nurll = "x"', "unknown setting alerts.sinks.ops.urll in config.toml; did you mean"),
        ("[alerts.sinks.ops]\nurl = 3", "alerts.sinks.ops.url: expected text, not the value there"),
        ('[alerts.sinks.ops]\nurl = "ftp://x"', "begins with https://"),
        ('[alerts.sinks.ops]\nurl = "https://x"\nto = ["a@b"]', "a sink of type webhook has no such setting"),
        ('[alerts.sinks.ops]\ntype = "email"\nto = ["a@b.example"]', "set host and sender in [mail]"),
        ('[mail]\nhost = "h"\nsender = "a@b"\n[alerts.sinks.m]\ntype = "email"\nto = ["x"]', "is not an address"),
        ('[alerts.sinks.c]\ntype = "command"\ncommand = ["x"]\nrules = ["dead_leters"]', "did you mean dead_letters?"),
        ('[alerts.sinks.c]\ntype = "sms"', "expected webhook, slack"),
        ("[alerts.rules.retry_rate]\nabove = 1.5", "at most 1"),
        ("[alerts.rules.retry_rate]\nabove = 0.1\nbelow = 0.2", "would never be over"),
        ("[alerts.rules.nope]\nenabled = true", "unknown setting alerts.rules.nope.enabled"),
        ('[alerts]\nconsole_url = "here"', "begins with https://"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert message in str(caught.value)


def test_a_mistake_in_the_environment_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown setting SCHEDD_ALERTS__SINKS__OPS__URLL"):
        read("", SCHEDD_ALERTS__SINKS__OPS__URLL="x")
