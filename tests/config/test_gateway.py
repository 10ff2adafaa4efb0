"""The settings of ``[gateway]``, and what they have to do with those of executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler import Scheduler
from scheduler.config.load import load
from scheduler.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[executors.it]\ntype = "process"\nstore = "gateway"\n', "gateway.urls"),
        ('[gateway]\nlisten = "127.0.0.1:0"\n', "openssl rand -hex 32"),
        ('[gateway]\nsecret = "short"\n', "at least 16 characters"),
        ('[gateway]\nurls = ["ftp://x"]\n', "expected URLs such as"),
        ('[gateway]\ncert = "x"\n', "cert and key come together"),
        ('[gateway]\nlisten = "x"\nsecret = "0123456789abcdef"\n', "gateway.listen"),
        (
            '[executors.it]\ntype = "process"\nstore = "gateway"\n[gateway]\nurls = ["http://a:1"]\n'
            'secret = "0123456789abcdef"\n',
            "executors.it.job_config",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "schedd.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(str(file), {})


def test_a_job_that_has_no_database_says_so_whatever_uses_it(tmp_path: Path) -> None:
    jobs = Scheduler(f"sqlite:///{tmp_path / 'none.db'}")
    jobs.database.refusal = "this job has no database"
    with pytest.raises(ConfigError, match="this job has no database"):
        jobs.list_tasks()
    jobs.close()
    assert not (tmp_path / "none.db").exists()
