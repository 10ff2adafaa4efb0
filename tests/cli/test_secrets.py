"""No secret of the configuration appears in anything that a command or the daemon writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.conftest import Ctl
from sqlalchemy import make_url

from scheduler.cli.root import root
from support.commands import EVERY, leaves
from support.databases import Database, one_database
from support.processes import Nursery

CANARY = "canary-7f3a"
FORMS = (
    "postgresql+psycopg://me:{0}@127.0.0.1:1/d",
    "postgresql://127.0.0.1:1/d?user=me&password={0}",
    "postgresql+psycopg://me@127.0.0.1:1/d?sslpassword={0}&sslmode=disable",
    "postgresql+psycopg://me@/d?host=/no/such/{0}x&passfile=/run/{0}".replace("{0}x", "directory"),
    "postgresql+psycopg://me@127.0.0.1:1/d?passwort={0}&password={0}",
    "postgresql+psycopg://me:{0}@127.0.0.1:port/d",
    "postgresql:me:{0}@127.0.0.1/d",
    "mysql://me:{0}@127.0.0.1/d",
)


def test_every_command_is_among_them() -> None:
    for name in set(leaves(root)) - {"console"}:  # which serves until it is stopped
        assert any(line.startswith(name) for line in EVERY), name


@pytest.mark.case(83, pure=True)
@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize("form", FORMS)
def test_no_command_shows_the_password_of_a_server_that_does_not_answer(form: str, debug: str, tmp_path: Path) -> None:
    config = tmp_path / "schedd.toml"
    config.write_text(f'[store]\nurl = "{form.format(CANARY)}"\n')
    ctl = Ctl({"SCHEDD_CONFIG": str(config), "NO_COLOR": "1", "SCHEDD_DEBUG": debug})
    for line in EVERY if not debug else ("status",):
        result = ctl(*line.split())
        assert CANARY not in result.output, line


@pytest.fixture
def secretive(database: Database, tmp_path: Path) -> Ctl:
    """A configuration with a secret wherever there can be one; the server trusts us, so that the commands work."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    for name in ("mail.password", "api-token", "signing-key.pem"):
        (credentials / name).write_text(f"{CANARY}\n")
    url = database.url
    if not database.is_sqlite:
        url = make_url(url).update_query_dict({"password": CANARY}).render_as_string(hide_password=False)
    config = tmp_path / "schedd.toml"
    config.write_text(
        f'[store]\nurl = "{url}"\n'
        f'[mail]\nhost = "localhost"\nuser = "me"\npassword = "{CANARY}"\n'
        f'[http]\nsecrets = ["api-token@localhost"]\nallow = ["localhost"]\n'
        f'[actions]\nname = "a.example"\ninbox = "https://me:{CANARY}@{{recipient}}/in?token={CANARY}"\n'
        f'keys = "https://{{issuer}}/keys?api_key={CANARY}"\n'
        '[tasks]\nbuiltin = ["HttpTask", "EmailTask"]\n'
    )
    return Ctl({"SCHEDD_CONFIG": str(config), "CREDENTIALS_DIRECTORY": str(credentials), "NO_COLOR": "1"})


@pytest.mark.case(83)
@one_database
def test_no_command_shows_a_secret_of_the_configuration(secretive: Ctl) -> None:
    for line in (*EVERY, "config check -o jsonl", "db check -o json", "doctor -o json"):
        result = secretive(*line.split())
        assert CANARY not in result.output, line
        assert "Traceback" not in result.output, line


@pytest.mark.case(83)
def test_the_daemon_logs_no_secret(secretive: Ctl, tmp_path: Path) -> None:
    with Nursery(tmp_path) as nursery:
        child = nursery.start("-m", "scheduler.daemon", **secretive.environment, SCHEDD_LOG__LEVEL="debug")
        nursery.systemd.expect("READY=1")
        child.kill(15)
        assert child.end() == 0
        assert not [line for line in child.seen if CANARY in line]


@pytest.mark.case(83, pure=True)
@pytest.mark.parametrize(
    "mistake",
    [
        '[mail]\npassword = ["{0}"]\n',
        '[mail]\npassword = 12\npasswort = "{0}"\n',
        '[mail]\npasswort = "{0}"\n',
        '[store]\nurl = ["{0}"]\n',
        '[mail]\npassword = "{0}\n',
        '[mail]\npassword = {0}\n',
        '[http]\nallow = ["https://me:{0}@host"]\n',
        '[actions]\nmax_file = "https://host/?token={0}"\n',
    ],
)  # fmt: skip
def test_a_mistake_in_the_configuration_shows_no_secret(mistake: str, tmp_path: Path) -> None:
    config = tmp_path / "schedd.toml"
    config.write_text(mistake.format(CANARY))
    result = Ctl({"SCHEDD_CONFIG": str(config)})("config", "check")
    assert result.exit_code == 2
    assert CANARY not in result.output
