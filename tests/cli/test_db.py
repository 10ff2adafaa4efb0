"""``db`` and ``config``, and databases that cannot be used."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scheduler.store.db.migrate import HEAD
from scheduler.store.db.sqlite_copy import backup_sqlite
from support.bench import Bench, notify_and_step
from support.databases import Database

from .conftest import Ctl, environment_for

pytestmark = pytest.mark.both_databases


class TestUpgrade:
    def test_from_nothing_and_again(self, empty_ctl: Ctl, empty_database: Database) -> None:
        plan = empty_ctl("db", "upgrade", "--dry-run")
        assert plan.exit_code == 0, plan.output
        assert "CREATE TABLE schedd_tasks" in plan.stdout
        assert not (empty_database.is_sqlite and empty_database.path.exists())
        first = empty_ctl("db", "upgrade")
        assert (first.exit_code, first.stdout) == (0, f"upgraded: nothing -> {HEAD}\n")
        assert empty_ctl("db", "upgrade").stdout == f"up to date: {HEAD}\n"
        assert empty_ctl.json("db", "upgrade") == {"from": HEAD, "to": HEAD, "copy": None}
        again = empty_ctl("db", "upgrade", "--dry-run")
        assert (again.exit_code, again.stdout) == (0, "")
        assert "nothing to do" in again.stderr
        assert empty_ctl.json("db", "check")["ok"] is True

    def test_a_database_newer_than_the_program_is_refused(self, ctl: Ctl, live: Bench) -> None:
        live.execute("UPDATE schedd_version SET version_num = '9999'")
        for command in (["db", "upgrade"], ["db", "upgrade", "--dry-run"], ["list"], ["run", "--", "true"]):
            assert f"newer than this program's {HEAD}: upgrade schedd" in ctl.fails(5, *command)
        result = ctl("db", "check")
        assert result.exit_code == 1
        assert "newer than this program" in result.stderr

    def test_the_next_schema_is_fine_and_reported(self, ctl: Ctl, live: Bench) -> None:
        live.execute("UPDATE schedd_version SET version_num = :next", next=f"{int(HEAD) + 1:04}")
        result = ctl("db", "check")
        assert result.exit_code == 0
        assert f"the database is newer than this program ({HEAD}): upgrade schedd" in result.stderr
        assert ctl("list").exit_code == 0

    def test_a_database_that_is_not_migrated(self, empty_ctl: Ctl, empty_database: Database) -> None:
        message = empty_ctl.fails(5, "list")
        assert "`schedctl db upgrade`" in message
        if empty_database.is_sqlite:
            assert not empty_database.path.exists()


def test_check_of_a_good_database(ctl: Ctl, database: Database) -> None:
    view = ctl.json("db", "check")
    assert view["ok"] is True
    assert view["revision"] == view["wanted"] == HEAD
    assert view["bytes"] > 0
    assert "schema:" in ctl("db", "check").stdout


class TestBackup:
    def test_copies_what_is_committed(self, ctl: Ctl, live: Bench, tmp_path: Path) -> None:
        made = int(live.step("s").schedule())
        target = tmp_path / "copy.db"
        result = ctl("db", "backup", target)
        if not live.database.is_sqlite:
            assert result.exit_code == 2
            assert "use pg_dump" in result.stderr
            return
        assert (result.exit_code, result.stdout) == (0, f"{target}\n")
        assert os.listdir(tmp_path.resolve()).count("copy.db") == 1
        assert not list(tmp_path.glob(".copy.db*"))
        copy = Ctl(environment_for(f"sqlite:///{target}", tmp_path))
        assert [t["id"] for t in copy.json("list")] == [made]
        assert f"{target} exists already" in ctl.fails(1, "db", "backup", target)

    @pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
    def test_beside_the_database_by_default(self, ctl: Ctl, database: Database) -> None:
        view = ctl.json("db", "backup")
        assert Path(view["file"]).parent == database.path.parent
        with closing(sqlite3.connect(view["file"])) as connection:
            assert connection.execute("SELECT count(*) FROM schedd_tasks").fetchone() == (0,)

    @pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
    @pytest.mark.parametrize(("mode", "copied"), [(0o600, 0o600), (0o640, 0o600), (0o666, 0o600), (0o400, 0o400)])
    @pytest.mark.case(86, pure=True)
    def test_the_copy_is_read_by_its_owner_alone(self, ctl: Ctl, database: Database, mode: int, copied: int) -> None:
        database.path.chmod(mode)
        before = os.umask(0o022)
        try:
            file = Path(ctl.json("db", "backup")["file"])
        finally:
            os.umask(before)
        assert file.stat().st_mode & 0o777 == copied

    @pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
    def test_the_copy_of_a_write_protected_file_is_written(self, database: Database, tmp_path: Path) -> None:
        """Root may write any file, so the copy's mode is looked at while it is made."""
        database.path.chmod(0o400)
        modes = set()

        def look(*_: int) -> None:
            modes.update(draft.stat().st_mode & 0o777 for draft in tmp_path.glob(".copy.db.*"))

        backup_sqlite(database.path, tmp_path / "copy.db", look)
        assert modes == {0o600}
        assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o400

    @pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
    @pytest.mark.case(2, 6)
    def test_what_is_restored_goes_on(self, bench: Bench, tmp_path: Path) -> None:
        """What was held then is taken back; what has ended since runs again."""
        held, later = int(bench.step("held").schedule()), int(bench.step("later", 1).schedule())
        notify_and_step(bench.jobs)
        backup_sqlite(bench.database.path, tmp_path / "copy.db")
        assert bench.drain() == ["held", "later"]
        restored = Bench(Database(f"sqlite:///{tmp_path / 'copy.db'}", "sqlite"), bench.clock, bench.script)
        assert restored.states(held, later) == ["claimed", "waiting"]
        notify_and_step(restored.jobs)
        for _ in range(5):
            bench.clock.advance(9)
            notify_and_step(restored.jobs)
        restored.drain()
        assert restored.states(held, later) == ["success", "success"]
        restored.close()

    @pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
    def test_to_where_nothing_can_be_written(self, ctl: Ctl, tmp_path: Path) -> None:
        assert "cannot back up to" in ctl.fails(1, "db", "backup", tmp_path / "no" / "such.db")


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_backup_of_postgresql_is_left_to_its_own_tools(ctl: Ctl) -> None:
    assert "use pg_dump" in ctl.fails(2, "db", "backup")


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
class TestUnusable:
    """Each gives an error of a line or two, status 5, and writes nothing by halves."""

    def test_no_such_directory(self, ctl: Ctl, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'no' / 'jobs.db'}"
        assert "does not exist" in ctl.fails(5, "run", "--", "true", SCHEDD_STORE__URL=url)
        assert "there is no database" in ctl.fails(5, "status", SCHEDD_STORE__URL=url)

    def test_no_database_file_is_not_made_by_looking(self, ctl: Ctl, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        looks = (["status"], ["list"], ["show", "1"], ["workers"], ["cron", "list"], ["doctor"], ["db", "check"])
        for command in looks:
            assert "there is no database" in ctl.fails(5, *command, SCHEDD_STORE__URL=f"sqlite:///{path}")
        assert not path.exists()

    def test_a_file_that_is_no_database(self, ctl: Ctl, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        path.write_bytes(b"not a database, certainly " * 100)
        for command in (["list"], ["db", "check"], ["db", "upgrade"]):
            message = ctl.fails(5, *command, SCHEDD_STORE__URL=f"sqlite:///{path}")
            assert "is not a (healthy) SQLite database" in message

    def test_debug_shows_where(self, ctl: Ctl) -> None:
        result = ctl("show", 1, SCHEDD_DEBUG="1")
        assert result.exit_code == 3
        assert "Traceback" in result.stderr
        assert "UnknownTaskError" in result.stderr


@pytest.mark.parametrize("command", [["status"], ["db", "check"], ["db", "upgrade"]])
def test_a_database_in_a_directory_that_may_not_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    ctl = Ctl(environment_for(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path))
    monkeypatch.setattr(Path, "stat", refuse)  # nothing is forbidden to root, as whom tests may run
    message = ctl.fails(5, *command)
    assert message.endswith("jobs.db: Permission denied; do it as the user that schedd runs as\n")


def test_an_unreachable_server(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://postgres:geheim@/db?host={tmp_path}"
    message = Ctl(environment_for(url, tmp_path)).fails(5, "list")
    assert "is the server running?" in message
    assert "geheim" not in message


class TestConfig:
    def test_check_shows_values_and_sources(self, ctl: Ctl, database: Database) -> None:
        rows = {row["setting"]: row for row in ctl.json("config", "check")}
        assert rows["store.url"]["source"] == "SCHEDD_STORE__URL"
        assert rows["worker.lease"] == {"setting": "worker.lease", "value": 30.0, "source": "default"}
        assert "pools.high.slots" in ctl("config", "check").stdout

    def test_passwords_are_masked(self, ctl: Ctl) -> None:
        url = "postgresql+psycopg://me:geheim@host/db"
        for form in ("table", "json"):
            result = ctl("config", "check", "-o", form, SCHEDD_STORE__URL=url)
            assert result.exit_code == 0
            assert "geheim" not in result.output
            assert "me:***@host/db" in result.stdout

    def test_mistakes(self, ctl: Ctl, tmp_path: Path) -> None:
        config = tmp_path / "wrong.toml"
        config.write_text("[worker]\nleese = 3\n")
        message = ctl.fails(2, "--config", config, "config", "check")
        assert "unknown setting worker.leese" in message
        assert "unknown setting worker.leese" in ctl.fails(2, "list", "--config", config)
        assert "there is no configuration file" in ctl.fails(2, "--config", tmp_path / "no.toml", "status")
        assert "not a database URL" in ctl.fails(2, "config", "check", SCHEDD_STORE__URL="mysql://x")

    def test_why_the_console_would_not_start(self, ctl: Ctl, tmp_path: Path) -> None:
        config = tmp_path / "console.toml"
        users = tmp_path / "users"
        config.write_text(f'[console]\nlisten = "127.0.0.1:0"\nauth = "token"\nusers = "{users}"\n')
        told = ctl("--config", config, "config", "check").stderr
        assert "the console does not start: cannot read the users file" in told
        assert "there is no role 'viewr'" in ctl.fails(2, "console", "--new-user", "me:viewr")
        users.write_text(ctl("console", "--new-user", "me:viewer").stdout)
        assert "does not start" not in ctl("--config", config, "config", "check").stderr


class TestMoving:
    """``db copy``, ``db export`` and ``db import``; tests/store/admin/test_transfer.py has what they keep."""

    def test_a_store_is_copied_and_the_next_steps_are_printed(self, ctl: Ctl, bench: Bench, tmp_path: Path) -> None:
        bench.step("a").schedule()
        bench.jobs.close()
        target = f"sqlite:///{tmp_path / 'moved.db'}"
        result = ctl("db", "copy", "--to", target)
        assert result.exit_code == 0, result.output
        assert "schedd_tasks" in result.stdout
        assert f"copied and compared; next, set [store] url to {target}" in result.stderr
        assert ctl("list", SCHEDD_STORE__URL=target).stdout.count("Step") == 1
        again = ctl.fails(1, "db", "copy", "--to", target)
        assert "the target is not empty (rows in " in again
        entry = json.loads(ctl("-o", "json", "audit", SCHEDD_STORE__URL=target).stdout)[0]
        assert entry["action"] == "db copy"

    def test_the_password_need_not_be_on_the_command_line(self, ctl: Ctl, bench: Bench, tmp_path: Path) -> None:
        bench.step("a").schedule()
        bench.jobs.close()
        other = tmp_path / "other.toml"
        other.write_text(f'[store]\nurl = "sqlite:///{tmp_path / "moved.db"}"\n')
        assert ctl("db", "copy", "--to-config", other).exit_code == 0
        for wrong in ([], ["--to", "sqlite:///x.db", "--to-config", other]):
            assert "--to URL or --to-config FILE" in ctl.fails(2, "db", "copy", *wrong)

    def test_through_a_file(self, ctl: Ctl, bench: Bench, tmp_path: Path) -> None:
        bench.step("a").schedule()
        bench.jobs.close()
        file = tmp_path / "store.jsonl"
        assert ctl("db", "export", file).exit_code == 0
        assert file.stat().st_mode & 0o777 == 0o600
        assert "File exists" in ctl.fails(1, "db", "export", file)
        assert ctl("db", "export", "-").stdout.splitlines()[1:-1] == file.read_text().splitlines()[1:-1]
        target = f"sqlite:///{tmp_path / 'moved.db'}"
        assert ctl("db", "import", file, SCHEDD_STORE__URL=target).exit_code == 0
        assert ctl("list", SCHEDD_STORE__URL=target).stdout.count("Step") == 1
        file.write_bytes(file.read_bytes()[:-300])
        elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
        assert "is no line of an export" in ctl.fails(1, "db", "import", file, SCHEDD_STORE__URL=elsewhere)
        assert "Step" not in ctl("list", SCHEDD_STORE__URL=elsewhere).stdout

    def test_while_a_worker_lives_nothing_is_written(self, ctl: Ctl, live: Bench, tmp_path: Path) -> None:
        live.step("a").schedule()
        notify_and_step(live.jobs)
        file = tmp_path / "store.jsonl"
        assert "1 worker is live, such as" in ctl.fails(1, "db", "export", file)
        assert not file.exists()
