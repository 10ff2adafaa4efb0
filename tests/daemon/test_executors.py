"""A real daemon places tasks; jobs outlive it, and the next daemon goes on with them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from scheduler import ConfigError, Scheduler
from support.databases import Database
from support.fleet import until
from support.placing import free_port
from support.processes import Nursery

JOBS = """
import os, time
from pathlib import Path
from scheduler import Context, Task

class Fit(Task, executor="batch"):
    place: str

    def run(self, ctx: Context):
        place = Path(self.place)
        (place / "begun").write_text(str(os.getppid()))
        while not (place / "go").exists():
            time.sleep(0.01)
        ctx.log.info("fitted")
        return os.environ["SCHEDD_CONFIG"]

class After(Task):
    def run(self, ctx: Context):
        return list(ctx.results().values())
"""


STEPS = """
import time
from pathlib import Path
from scheduler import Context, Task

class Steps(Task, executor="batch"):
    place: str

    def run(self, ctx: Context):
        place = Path(self.place)
        one = ctx.step("one", lambda: "first")
        (place / "begun").touch()
        while not (place / "go").exists():
            time.sleep(0.01)
        (place / "second").touch()
        return [one, ctx.step("two", lambda: "second")]
"""


@pytest.mark.faults
def test_a_job_outlives_its_daemon_and_what_waits_for_it_runs(database: Database, tmp_path: Path) -> None:
    (tmp_path / "fitjobs.py").write_text(JOBS)
    file = tmp_path / "schedd.toml"
    file.write_text(
        f'[store]\nurl = "{database.url}"\nauto_migrate = true\n[tasks]\nmodules = ["fitjobs"]\npath = ["{tmp_path}"]\n'
        f'[executors.batch]\ntype = "process"\ndirectory = "{tmp_path / "jobs"}"\ninterval = 0.05\n'
    )
    environ = {"SCHEDD_LOG__FORMAT": "console", "SCHEDD_WORKER__LEASE": "2", "SCHEDD_CONFIG": str(file)}
    jobs = Scheduler(database.url)
    with Nursery(tmp_path) as nursery:
        doomed = nursery.start("-m", "scheduler.daemon", **environ)
        doomed.expect("this daemon places tasks for executor batch")
        fit = jobs.task("Fit", {"place": str(tmp_path)}).schedule()
        after = jobs.task("After", {}).depend_on(fit).schedule()
        until((tmp_path / "begun").exists, 60)
        doomed.kill(signal.SIGKILL)
        assert doomed.end() == -signal.SIGKILL
        (tmp_path / "go").touch()
        assert jobs.result(fit, timeout=60) == str(file)  # recorded by the job, though no daemon runs
        jobs.database.change(lambda tx: tx.run("UPDATE schedd_executors SET until = 0"))  # some seconds later
        daemon = nursery.start("-m", "scheduler.daemon", **environ)
        assert jobs.result(after, timeout=60) == [str(file)]
        until(lambda: not list((tmp_path / "jobs").iterdir()), 60)  # it has tidied up after the other one
        daemon.kill(signal.SIGTERM)
        assert daemon.end() == 0
    assert [attempt.outcome.value for attempt in jobs.get_attempts(fit)] == ["succeeded"]
    jobs.close()


def test_the_configuration_is_checked_before_anything_starts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from scheduler.daemon.main import main

    file = tmp_path / "schedd.toml"
    for text, said in (
        ('type = "slrum"\n', "there is no executor of type 'slrum'; there are process"),
        ('type = "process"\n', "setting executors.batch.directory (default): an executor of type process needs it"),
        ('type = "process"\ndirectory = "/tmp/x"\nqueue = "a"\n', "an executor of type process has no such setting"),
        ("interval = 1\n", "an executor needs the type of its engine, such as process"),
        ('type = "process"\nqueues = ["a b"]\n', "'a b' is not a queue's name"),
    ):
        file.write_text(f"[executors.batch]\n{text}")
        assert main(["--check", "--config", str(file)]) == 2, said
    workers = f'type = "process"\ndirectory = "{tmp_path}"\nplace = "worker"\n'
    for text, said in (
        ("max_workers = 2\n", "executors.batch.queues (default): with place = "),
        ('queues = ["a"]\n', "executors.batch.max_workers (default): with place = "),
        ('queues = ["a"]\nmax_workers = 2\nmin_workers = 3\n', "it is above max_workers, 2"),
        ('queues = ["a"]\nmax_workers = 2\nmax_running = 3\n', "it has no effect with place = "),
        ('queues = ["a"]\nmax_workers = 2\nworker_resources = { cores = 3 }\n', "resources: there is no 'cores'"),
        ('queues = ["a"]\nmax_workers = 2\nworker_resources = 3\n', "expected a table such as"),
    ):
        file.write_text(f"[executors.batch]\n{workers}{text}")
        assert main(["--check", "--config", str(file)]) == 2, said
        assert said in capfd.readouterr().err
    file.write_text(f'[executors.batch]\n{workers}queues = ["*"]\nmax_workers = 2\n')
    assert main(["--check", "--config", str(file)]) == 0
    file.write_text('[executors.batch]\ntype = "process"\ndirectory = "/tmp/x"\nmax_workers = 2\n')
    assert main(["--check", "--config", str(file)]) == 2
    file.write_text('[executors.local]\ntype = "process"\n')
    assert main(["--check", "--config", str(file)]) == 2
    file.write_text(f'[executors.batch]\ntype = "process"\ndirectory = "{tmp_path}"\n')
    assert main(["--check", "--config", str(file)]) == 0


def test_a_table_of_options_may_stand_in_the_file_and_in_the_environment(tmp_path: Path) -> None:
    """As a site's Slurm wants them: ``defaults`` of ``executor_options``."""
    from scheduler.config.load import load
    from scheduler.executors.service import make_executors

    file = tmp_path / "schedd.toml"
    for defaults, wrong in (
        ('{ partition = "batch", nice = 5 }', None),
        ('{ partition = "batch", wrap = "rm" }', "there is no 'wrap'"),
        ('["partition"]', "expected a table such as"),
        ("{ nice = { low = 1 } }", "nice must be a whole number"),
    ):
        file.write_text(f'[executors.it]\ntype = "slurm"\ndirectory = "/tmp/x"\ndefaults = {defaults}\n')
        if wrong is None:
            make_executors(load(str(file), {}))
            make_executors(load(str(file), {"SCHEDD_EXECUTORS__IT__DEFAULTS": '{"qos": "low"}'}))
            continue
        with pytest.raises(ConfigError, match=wrong):
            make_executors(load(str(file), {}))


@pytest.mark.faults
def test_a_job_without_a_database_outlives_its_daemon(database: Database, tmp_path: Path) -> None:
    """The gateway goes with the daemon; the next daemon's answers the job, whose steps and end it records once."""
    (tmp_path / "stepjobs.py").write_text(STEPS)
    job = tmp_path / "job.toml"
    job.write_text(f'[tasks]\nmodules = ["stepjobs"]\npath = ["{tmp_path}"]\n')
    port = free_port()
    file = tmp_path / "schedd.toml"
    file.write_text(
        f'[store]\nurl = "{database.url}"\nauto_migrate = true\n'
        f'[tasks]\nmodules = ["stepjobs"]\npath = ["{tmp_path}"]\n'
        f'[executors.batch]\ntype = "process"\ndirectory = "{tmp_path / "jobs"}"\ninterval = 0.05\n'
        f'store = "gateway"\njob_config = "{job}"\n[gateway]\nlisten = "127.0.0.1:{port}"\n'
        f'urls = ["http://127.0.0.1:{port}"]\nsecret = "a secret of all daemons"\n'
    )
    environ = {"SCHEDD_LOG__FORMAT": "console", "SCHEDD_WORKER__LEASE": "60", "SCHEDD_CONFIG": str(file)}
    jobs = Scheduler(database.url)
    with Nursery(tmp_path) as nursery:
        doomed = nursery.start("-m", "scheduler.daemon", **environ)
        doomed.expect("the gateway of jobs is open at")
        fit = jobs.task("Steps", {"place": str(tmp_path)}).schedule()
        until((tmp_path / "begun").exists, 60)
        doomed.kill(signal.SIGKILL)
        assert doomed.end() == -signal.SIGKILL
        (tmp_path / "go").touch()  # the next step waits for a gateway
        until((tmp_path / "second").exists, 60)
        daemon = nursery.start("-m", "scheduler.daemon", **environ)
        assert jobs.result(fit, timeout=90) == ["first", "second"]
        daemon.kill(signal.SIGTERM)
        assert daemon.end() == 0
    assert [attempt.outcome.value for attempt in jobs.get_attempts(fit)] == ["succeeded"]
    with jobs.database.read() as tx:
        names = tx.run("SELECT name FROM schedd_checkpoints ORDER BY seq").scalars().all()
    assert names == ["one", "two"]
    jobs.close()
