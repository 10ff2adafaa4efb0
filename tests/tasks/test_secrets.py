"""Secrets come from the configuration and from files, and get no further: not into the store, the log, or ``show``."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler import Scheduler, TaskState
from scheduler.cli.root import root
from scheduler.tasks import EmailTask, HttpTask
from scheduler.testing import drain
from support.runner import Runner

from .server import answer, serving

SECRET = "hunter2-of-the-crm"
PASSWORD = "hunter3-of-the-mail"
CONFIG = """
[tasks]
builtin = ["HttpTask", "EmailTask"]
[http]
allow = ["127.0.0.1"]
secrets = ["crm@127.0.0.1"]
secrets_dir = "secrets"
[mail]
host = "127.0.0.1"
port = 1
tls = "starttls"
user = "me"
sender = "me@sender.example"
"""


def test_no_secret_gets_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(CONFIG)
    Path("secrets").mkdir()
    Path("secrets/crm").write_text(f"{SECRET}\n")
    Path("credentials").mkdir()
    Path("credentials/mail.password").write_text(PASSWORD)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    caplog.set_level("DEBUG")

    jobs = Scheduler.from_config()
    assert jobs.settings["mail"]["password"] == PASSWORD
    echo = answer(200, f"you are {SECRET}".encode(), X_You=SECRET)
    refusal = answer(403, f"not for {SECRET}".encode())
    with serving(echo, refusal) as server:
        request = HttpTask(server.url, headers={"Authorization": "Bearer ${crm}"})
        good, bad = jobs.task(request).schedule(), jobs.task(request).schedule()
        mail = jobs.task(EmailTask("ada@example.org", "Hello", "…")).schedule()
        drain(jobs)
    assert [asked.headers["authorization"] for asked in server.asked] == [f"Bearer {SECRET}"] * 2
    assert [jobs.get_task_status(one) for one in (good, bad, mail)] == [
        TaskState.SUCCESS,
        TaskState.DEAD,
        TaskState.RETRY,
    ]
    jobs.close()

    shown = "".join(Runner().invoke(root, ["show", str(one)]).output for one in (good, bad, mail))
    shown += "".join(Runner().invoke(root, ["logs", str(one)]).output for one in (good, bad, mail))
    settings = Runner().invoke(root, ["config", "check"]).output
    assert "Authorization" in shown
    assert "mail.password" in settings
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("schedd.db*") if path.is_file())
    assert b"Bearer ${crm}" in stored
    for secret in (SECRET, PASSWORD):
        assert secret not in shown + settings + caplog.text
        assert secret.encode() not in stored
