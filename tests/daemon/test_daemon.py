"""The daemon as a process of its own, over a Scheduler that does as the test says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import PATIENCE, Child, Nursery, Systemd

PROGRAM = """
import contextlib, json, os, sys, threading
from scheduler.config import task_modules as modules
from scheduler.daemon import main as daemon, supervisor
from scheduler.errors import ConfigError, StoreUnavailableError
from scheduler.model.registry import Registry

plan = json.loads(os.environ["PLAN"])
supervisor.FIRST_PAUSE = 0.01
supervisor.STATUS_EVERY = plan.get("status_every", supervisor.STATUS_EVERY)

def say(*words):
    print(*words, flush=True)

class Engine:
    age = 0.0
    ids = plan.get("left", [])
    class database:
        path = None
    def loop_age(self):
        return self.age
    def wait_ready(self):
        pass
    def running_ids(self):
        return self.ids
    replaced = None
    def wait_ended(self):
        threading.Event().wait()
    def drain(self):
        say("drain")
    def wait_idle(self, timeout):
        if self.ids:
            threading.Event().wait(timeout)
        return not self.ids
    def idle_for(self):
        return None if self.ids else 0.0
    def end_within(self, seconds):
        pass
    def on_restart(self, tell):
        self.restart = tell
    def only_hung(self):
        return False
    def hung_pool(self):
        return plan.get("hung")

class Fake:
    own = Engine()
    registry = Registry()
    running = False
    announced = False
    stopping = False
    may_stop = threading.Event()
    def __init__(self, config):
        self.config = config
        say("made", config.store.url, modules.make_state(config), "NOTIFY_SOCKET" in os.environ)
    @property
    def engine(self):
        if self.stopping:
            raise ConfigError("the scheduler has not been started")
        return self.own
    def register(self, source):
        say("register", getattr(source, "__name__", source))
    def starting(self):
        return contextlib.nullcontext()
    def schedule(self, what):
        say("setup", what)
        if what == "hangs":
            threading.Event().wait()
        self.trouble("setups")
    def trouble(self, where):
        if plan.get(where):
            text, heals = plan[where].pop(0)
            error = StoreUnavailableError(text)
            error.heals = heals
            raise error
    def start(self):
        if not self.announced:
            say("start")
        self.announced = True
        self.trouble("starts")
        self.running = True
        threading.Thread(target=self.obey, daemon=True).start()
    def obey(self):
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "age":
                self.own.age = float(rest)
            elif word == "die":
                self.running = False
            elif word == "ids":
                self.own.ids = json.loads(rest)
            elif word == "restart":
                self.own.restart()
            elif word == "stopped":
                self.may_stop.set()
            elif word == "fork":
                pid = os.fork()
                if pid == 0:
                    say("forked", os.getpid())
                    threading.Event().wait()
                say("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    def is_running(self):
        return self.running
    def reconfigure(self, *, pools, max_concurrent_tasks):
        say("reconfigured", pools["high"], max_concurrent_tasks)
    def stop_now(self):
        say("stop now")
        self.stopping = True
        if plan.get("slow"):
            self.may_stop.wait()
        if plan.get("deaf"):
            threading.Event().wait()
        if self.own.ids:  # a handler that nothing ends
            threading.Thread(target=threading.Event().wait).start()
        self.running = False
        return self.own.ids

sys.exit(daemon.main(factory=Fake))
"""

Start = Callable[..., Child]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        yield made


@pytest.fixture
def systemd(nursery: Nursery) -> Systemd:
    return nursery.systemd


@pytest.fixture
def start(nursery: Nursery) -> Start:
    nursery.write("program.py", PROGRAM)

    def start(*arguments: str, plan: dict[str, Any] | None = None, **environ: str) -> Child:
        return nursery.start("program.py", *arguments, PLAN=json.dumps(plan or {}), **environ)

    return start


def write(place: Path, text: str, name: str = "config.toml") -> None:
    (place / name).write_text(text)


JOBS = """
from scheduler.model.task import task
@task
def clean(ctx): ...
def setup(jobs): jobs.schedule(__name__)
"""


# Starting and stopping


def test_it_starts_and_drains(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    write(tmp_path, '[tasks]\nmodules = ["jobs"]\npath = ["."]\nstate = "jobs:len"\n[worker]\ndrain = 7')
    write(tmp_path, JOBS + "def len(): return 42\n", "jobs.py")
    child = start()
    assert child.says("made") == f"made sqlite:///{tmp_path}/schedd.db 42 False"
    assert child.says("register") == "register clean"
    assert child.says("setup") == "setup jobs"
    child.says("start")
    assert systemd.expect("READY=1") == "READY=1\nSTATUS=ready"
    assert systemd.expect("STATUS") == "STATUS=0 tasks under way"
    starts = json.loads(child.expect('"schedd .* starts"'))
    assert (starts["kinds"], starts["store"]) == (["clean"], f"sqlite:///{tmp_path}/schedd.db")
    child.kill(signal.SIGTERM)
    child.says("drain")
    child.says("stop now")
    systemd.expect("STOPPING=1")
    assert systemd.expect("EXTEND") == "EXTEND_TIMEOUT_USEC=27000000"
    child.expect('"stopped"')
    assert child.end() == 0


def test_drain_waits_for_what_runs(start: Start, systemd: Systemd) -> None:
    child = start(plan={"left": [7]})
    systemd.expect("READY=1")
    child.kill(signal.SIGTERM)
    child.says("drain")
    child.tell("ids []")
    child.says("stop now")
    child.expect('"stopped"')
    assert child.end() == 0
    assert not [line for line in child.seen if "still running" in line]


def test_past_the_drain_time_it_ends_without_those_that_run(start: Start, systemd: Systemd) -> None:
    child = start(plan={"left": [7]}, SCHEDD_WORKER__DRAIN="0.2")
    systemd.expect("READY=1")
    child.kill(signal.SIGTERM)
    line = json.loads(child.expect("1 tasks were still running"))
    assert line["tasks"] == [7]
    assert child.end() == 0  # although the handler of task 7 goes on for ever


def test_a_message_to_systemd_during_the_last_write_does_not_end_it(start: Start, systemd: Systemd) -> None:
    """By then the scheduler says that it was never started; that ended the daemon, with status 2."""
    child = start(
        plan={"left": [7], "slow": True, "status_every": 0.02}, WATCHDOG_USEC="200000", SCHEDD_WORKER__DRAIN="0"
    )
    systemd.expect("READY=1")
    child.kill(signal.SIGTERM)
    child.says("stop now")
    systemd.forget()
    systemd.expect("WATCHDOG=1")
    child.tell("stopped")
    child.expect("1 tasks were still running")
    assert child.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(start: Start, systemd: Systemd, number: int) -> None:
    child = start(plan={"left": [7]}, SCHEDD_WORKER__DRAIN="1h")
    systemd.expect("READY=1")
    child.kill(number)
    child.says("drain")
    child.kill_until(number, "stopping at once")
    child.says("stop now")
    child.expect("1 tasks were still running")
    assert child.end() == 0


def test_a_third_signal_ends_it_whatever_happens(start: Start, systemd: Systemd) -> None:
    child = start(plan={"left": [7], "deaf": True}, SCHEDD_WORKER__DRAIN="1h")
    systemd.expect("READY=1")
    child.kill(signal.SIGTERM)
    child.says("drain")
    child.kill_until(signal.SIGTERM, "stopping at once")
    child.says("stop now")
    child.kill_until(signal.SIGTERM, "could not release")
    assert child.end() == 5


def test_a_signal_for_a_process_that_a_task_forked_is_not_the_daemons(start: Start, systemd: Systemd) -> None:
    """It shares what wakes the daemon: "terminate" of multiprocessing stopped it."""
    child = start()
    systemd.expect("READY=1")
    child.tell("fork")
    forked = int(child.says("^forked").split()[1])
    os.kill(forked, signal.SIGTERM)
    assert child.says("^ended") == f"ended {-signal.SIGTERM}"
    assert not [line for line in child.seen if "SIGTERM" in line]
    child.kill(signal.SIGTERM)
    child.expect("SIGTERM received")
    assert child.end() == 0


def test_an_engine_that_ends_by_itself_ends_the_daemon(start: Start, systemd: Systemd) -> None:
    child = start(plan={"status_every": 0.02})
    systemd.expect("READY=1")
    child.tell("die")
    child.expect("the engine has stopped by itself")
    assert child.end() == 1


@pytest.mark.case(77, pure=True)
@pytest.mark.parametrize("asked", [True, False])
def test_a_restart_ends_it_with_a_status_of_its_own(start: Start, systemd: Systemd, asked: bool) -> None:
    """By an operator, or where all slots of a pool are taken by handlers that hang and the configuration says so."""
    when_hung = {} if asked else {"SCHEDD_WORKER__RESTART_WHEN_HUNG": "true"}
    child = start(plan={"hung": "medium", "status_every": 0.02}, **when_hung)
    systemd.expect("READY=1")
    if asked:
        child.tell("restart")
    else:
        child.expect("each slot of the medium pool is taken by a handler that hangs")
    child.says("drain")
    child.says("stop now")
    child.expect("to be started again")
    assert child.end() == 75


def test_it_works_with_closed_streams(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    write(tmp_path, "")
    child = start()
    child.says("start")
    for stream in (child.process.stdin, child.process.stdout, child.process.stderr):
        assert stream is not None
    systemd.expect("READY=1")
    closed = subprocess.Popen(
        f"exec {sys.executable} {tmp_path / 'program.py'} 0<&- 2>&-",
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"PLAN": "{}", "NOTIFY_SOCKET": systemd.address},
        stdout=subprocess.PIPE,
    )
    systemd.expect("READY=1")
    closed.send_signal(signal.SIGTERM)
    closed.communicate(timeout=PATIENCE)
    assert closed.returncode == 0


# The store at start


def test_a_store_that_is_away_is_waited_for_and_logged_once_per_change(start: Start, systemd: Systemd) -> None:
    one, two = ["nothing answers there", True], ["the server takes no more connections", True]
    child = start(plan={"starts": [one, one, one, two, two]})
    systemd.expect("STATUS=waiting for the store: nothing answers there")
    systemd.expect("STATUS=waiting for the store: the server takes no more")
    systemd.expect("READY=1")
    child.kill(signal.SIGTERM)
    assert child.end() == 0
    events = [json.loads(line)["event"] for line in child.rest(child.err)]
    assert events[1:4] == [  # after "starts"
        "nothing answers there; trying again until it is there",
        "the server takes no more connections; trying again until it is there",
        "the store is there now",
    ]


def test_setup_is_tried_again_too(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    write(tmp_path, '[tasks]\nmodules = ["jobs"]\npath = ["."]')
    write(tmp_path, JOBS, "jobs.py")
    child = start(plan={"setups": [["nothing answers there", True]]})
    child.says("setup jobs")
    child.says("setup jobs")
    child.says("start")
    systemd.expect("READY=1")


def test_it_can_be_stopped_while_it_waits(start: Start, systemd: Systemd) -> None:
    child = start(plan={"starts": [["nothing answers there", True]] * 1000})
    systemd.expect("STATUS=waiting")
    child.kill(signal.SIGTERM)
    assert child.end() == 0
    assert not any("READY" in line for line in child.rest(child.out))


def test_a_store_that_waiting_does_not_mend(start: Start) -> None:
    child = start(plan={"starts": [["the database is not migrated: run `schedctl db upgrade`", False]]})
    child.expect("^schedd: the database is not migrated: run `schedctl db upgrade`$")
    assert child.end() == 5
    assert child.rest(child.err) == []


# Mistakes of the user


def complaint(child: Child) -> str:
    """The one line of an error, with nothing on stdout."""
    assert child.end() == 2
    assert not [line for line in child.rest(child.out) if not line.startswith("made")]
    (line,) = [line for line in child.rest(child.err) if not line.startswith("{")]
    return line


def test_a_mistake_in_the_configuration(start: Start, tmp_path: Path) -> None:
    write(tmp_path, "[worker]\nlaese = 3")
    child = start()
    assert complaint(child) == ("schedd: unknown setting worker.laese in config.toml; did you mean worker.lease?")
    assert complaint(start("--config", "nowhere.toml")) == "schedd: there is no configuration file nowhere.toml"


def test_a_module_that_does_not_import(start: Start, tmp_path: Path) -> None:
    write(tmp_path, '[tasks]\nmodules = ["jobs"]\npath = ["."]')
    write(tmp_path, "import os\nimport nowhere_to_be_found\n", "jobs.py")
    says = (
        f"schedd: module jobs cannot be imported: {tmp_path / 'jobs.py'}:2: "
        "ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    )
    assert complaint(start()) == says
    assert complaint(start("--check")) == says
    child = start("--debug")
    child.expect("^Traceback")
    child.expect("^schedd: module jobs")
    assert child.end() == 2


def test_a_setup_that_fails(start: Start, tmp_path: Path) -> None:
    write(tmp_path, '[tasks]\nmodules = ["jobs"]\npath = ["."]')
    write(tmp_path, "def setup(jobs):\n    jobs.nothing()\n", "jobs.py")
    assert complaint(start()).startswith(f"schedd: setup() of module jobs failed: {tmp_path / 'jobs.py'}:2: ")


def test_an_unknown_option(start: Start) -> None:
    child = start("--nonsense")
    child.expect("unrecognized arguments: --nonsense")
    assert child.end() == 2


def test_check_tells_the_kinds_and_runs_nothing(start: Start, tmp_path: Path) -> None:
    write(tmp_path, '[tasks]\nmodules = ["jobs"]\npath = ["."]')
    write(tmp_path, JOBS, "jobs.py")
    child = start("--check")
    assert child.end() == 0
    assert child.rest(child.out) == [f"{tmp_path / 'config.toml'}: fine; kinds: clean"]


def test_version_is_quick(start: Start) -> None:
    child = start("--version")
    child.says(r"^schedd \d+\.\d+")
    assert child.end() == 0
    code = "import sys, scheduler.daemon.main; print({'sqlalchemy', 'structlog', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# Reloading


def test_reload_takes_what_is_safe_and_names_the_rest(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    write(tmp_path, '[tasks]\nmodules = ["jobs"]\npath = ["."]')
    write(tmp_path, JOBS, "jobs.py")
    write(tmp_path, JOBS.replace("clean", "sweep"), "more.py")
    child = start()
    systemd.expect("READY=1")
    write(
        tmp_path,
        '[tasks]\nmodules = ["jobs", "more"]\npath = ["."]\n[worker]\ndrain = 3\nlease = 9\n'
        '[log]\nlevel = "debug"\nattempts = "all"\n[pools.high]\nslots = 3',
    )
    child.kill(signal.SIGHUP)
    systemd.expect("RELOADING=1")
    child.says("register sweep")
    child.says("setup more")
    systemd.expect("READY=1")
    line = json.loads(child.expect('"reloaded"'))
    assert line["changed"] == ["tasks.modules", "worker.drain", "pools.high.slots", "log.level"]
    assert line["kinds_registered"] == ["sweep"]
    child.expect("only a restart puts these into effect: worker.lease, log.attempts")
    child.kill(signal.SIGTERM)
    child.expect("running ones have 3 s")
    assert child.end() == 0


def test_a_reload_that_changes_nothing_says_so(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    write(tmp_path, "[worker]\nlease = 9")
    child = start()
    systemd.expect("READY=1")
    child.kill(signal.SIGHUP)
    line = json.loads(child.expect("reloaded"))
    assert "nothing has changed" in line["event"]
    assert "changed" not in line
    write(tmp_path, "[worker]\nlease = 8")
    child.kill(signal.SIGHUP)
    assert "changed" not in json.loads(child.expect("reloaded: nothing of what has changed takes effect before"))
    child.expect("only a restart puts these into effect: worker.lease")
    child.kill(signal.SIGTERM)
    assert child.end() == 0


def test_a_reload_changes_pools_and_their_bound(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    write(tmp_path, "")
    child = start()
    systemd.expect("READY=1")
    write(tmp_path, "[pools.high]\nslots = 7\n[worker]\nmax_concurrent_tasks = 9")
    child.kill(signal.SIGHUP)
    child.says(r"reconfigured \(7, 20\) 9")
    child.expect("reloaded")
    child.kill(signal.SIGTERM)
    assert child.end() == 0


def test_reload_names_what_was_taken_away(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    write(tmp_path, '[tasks]\nmodules = ["jobs"]\npath = ["."]')
    write(tmp_path, JOBS, "jobs.py")
    child = start()
    systemd.expect("READY=1")
    write(tmp_path, "")
    child.kill(signal.SIGHUP)
    child.expect("only a restart puts these into effect: tasks.modules")


def test_a_reload_that_fails_changes_nothing(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    write(tmp_path, "[worker]\ndrain = 5")
    unresolved = "from scheduler import Task\nclass Due(Task):\n    day: 'date'\n    def run(self, ctx): ...\n"
    (tmp_path / "unresolved.py").write_text(unresolved, encoding="utf-8")
    child = start()
    systemd.expect("READY=1")
    for text, says in (
        ("[worker]\ndrian = 6", "not reloaded: unknown setting worker.drian"),
        ('[worker]\ndrain = 6\n[tasks]\nmodules = ["nowhere_"]', "not reloaded: .*no module 'nowhere_'"),
        ('[worker]\ndrain = 6\n[tasks]\nmodules = ["unresolved"]\npath = ["."]', "not reloaded: .*name 'date'"),
    ):
        write(tmp_path, text)
        child.kill(signal.SIGHUP)
        child.expect(says)
        systemd.expect("READY=1")
    child.kill(signal.SIGTERM)
    child.expect("running ones have 5 s")
    assert child.end() == 0


def test_a_reload_that_hangs_does_not_block_a_stop(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    write(tmp_path, "")
    write(tmp_path, JOBS, "hangs.py")
    child = start()
    systemd.expect("READY=1")
    write(tmp_path, '[tasks]\nmodules = ["hangs"]\npath = ["."]')
    child.kill(signal.SIGHUP)
    child.says("setup hangs")
    child.kill(signal.SIGTERM)
    child.expect("not reloaded: stopped while setup")
    child.says("drain")
    assert child.end() == 0


# The watchdog


def test_the_watchdog_is_notified_while_the_loop_runs(start: Start, systemd: Systemd) -> None:
    child = start(plan={"status_every": 0.02}, WATCHDOG_USEC="200000")
    systemd.expect("READY=1")
    for _ in range(3):
        systemd.expect("WATCHDOG=1")
    child.tell("age 99")
    child.expect("the engine's loop has not run for 99.0 s")
    systemd.forget()
    child.tell("ids [1]")  # the next status lines come without a ping between them
    assert systemd.expect("STATUS|WATCHDOG") == "STATUS=1 task under way"
    child.tell("ids [1, 2]")
    assert systemd.expect("STATUS|WATCHDOG") == "STATUS=2 tasks under way"
    child.tell("age 0")
    systemd.expect("WATCHDOG=1")


def test_a_stuck_daemon_can_be_asked_what_it_does(start: Start, systemd: Systemd) -> None:
    child = start()
    systemd.expect("READY=1")
    child.kill(signal.SIGUSR1)
    child.expect("^Current thread|^Thread 0x")


def test_too_little_room_for_a_thread_is_one_line(nursery: Nursery) -> None:
    program = "import sys\nfrom scheduler.daemon import main as daemon\n"
    program += 'def factory(config):\n    raise RuntimeError("can\'t start new thread")\n'
    child = nursery.start("-c", program + "sys.exit(daemon.main([], factory=factory))")
    assert child.end() == 1
    lines = child.rest(child.err)
    assert len(lines) == 1
    assert "no thread can be started; raise ulimit -v" in lines[0]
