"""Runs in the virtual machine, as root: real daemons in control groups as systemd would have made them, by a user.

Prints a line for each check that held; the last line is ALL FINE. Raises AssertionError at the first that did not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vm_tasks import Alone, Bomb, Family, Task, Where, Within

from scheduler import Scheduler, TaskFailedError

USER = 1000
GROUPS = Path("/sys/fs/cgroup")
PATIENCE = 400.0  # seconds: the machine is emulated, and may stand still for minutes beside other work
CONFIG = """
[store]
url = "sqlite:////tmp/vm/jobs.db"
[tasks]
modules = ["vm_tasks"]
[worker]
processes = 2
grace = 1
lease = 900
"""


def say(text: str) -> None:
    print(f"VM: {time.monotonic():6.1f} s  {text}", flush=True)


def until(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.2)
    return value


def delegate(group: Path, *, mark: bool) -> None:
    """As systemd does for User= and Delegate=yes; ``mark``: as 251 and later say it."""
    group.mkdir()
    for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control", group / "cgroup.threads"):
        os.chown(path, USER, USER)
    if mark:
        os.setxattr(group, "user.delegate", b"1")


class Daemon:
    def __init__(self, group: Path) -> None:
        def join() -> None:
            (group / "cgroup.procs").write_text("0")
            os.setgid(USER)
            os.setuid(USER)

        self.log = open("/tmp/vm/daemon.log", "ab+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scheduler.daemon", "--config", "/tmp/vm/config.toml"],
            cwd="/tmp/vm",
            preexec_fn=join,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def lines(self) -> str:
        return Path("/tmp/vm/daemon.log").read_text(errors="replace")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, "it does not end well"


def run(jobs: Scheduler, task: Task) -> Any:
    """The result, or the text of the error."""
    task_id = jobs.task(task).schedule()
    try:
        return jobs.result(task_id, timeout=PATIENCE)
    except TaskFailedError:
        return jobs.get_attempts(task_id)[-1].error


def below(group: Path) -> list[str]:
    return sorted(entry.name for entry in group.iterdir() if entry.is_dir())


def processes(group: Path) -> list[str]:
    return [pid for file in group.rglob("cgroup.procs") for pid in file.read_text().split()]


def as_user(body: Callable[[], None]) -> None:
    """The side that schedules is the user's, too: SQLite's files have one owner."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgid(USER)
            os.setuid(USER)
            body()
            status = 0
        finally:
            sys.stdout.flush()
            if status:
                import traceback

                traceback.print_exc()
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, Path("/tmp/vm/daemon.log").read_text(errors="replace")[-6000:]


def scheduler() -> Scheduler:
    jobs = Scheduler("sqlite:////tmp/vm/jobs.db")
    for kind in (Alone, Bomb, Family, Where, Within):
        jobs.register(kind)
    return jobs


def defuse(jobs: Scheduler) -> None:
    """No daemon is to start the bomb of another one again."""
    for task in jobs.list_tasks(kind="Bomb"):
        if not task.state.terminal:
            jobs.cancel_task(task.id)


def limits_hold(group: Path, daemon: Daemon) -> None:
    jobs = scheduler()
    defuse(jobs)
    where = run(jobs, Where())
    own = Path(f"/proc/{daemon.process.pid}/cgroup").read_text().strip()
    name = where["group"].rpartition("/")[2]
    assert where["group"] == f"/{group.name}/{name}", where
    assert name.startswith("schedd-"), where
    assert where["max"] == "max", where
    say(f"the daemon is in {own}, a child in {where['group']}")
    within = run(jobs, Within())
    assert 256 << 20 <= int(within["max"]) < 400 << 20, within
    say(f"a kind's limit while it runs: memory.max is {within['max']}")
    outcome = run(jobs, Family(20))
    assert "with all that it had started it was over its limit of 256 MiB of memory" in outcome, outcome
    say(f"grandchildren that take 4 GiB together: {outcome}")
    until(lambda: len(processes(group)) <= 5, "of the family nothing is left")
    outcome = run(jobs, Alone())
    assert "MemoryError" in outcome or "the limit of this kind is memory 256 MiB" in outcome, outcome
    say(f"4 GiB alone: {outcome.splitlines()[-1]}")
    bomb = jobs.task(Bomb()).schedule()
    most = until(lambda: (n := len(processes(group))) > 500 and n, "it multiplies")
    say(f"a fork bomb has {most} processes")
    jobs.cancel_task(bomb)
    until(lambda: jobs.get_task(bomb).state.terminal, "it is ended")
    left = processes(group)
    say(f"cancelled, it is {jobs.get_task(bomb).state}; {len(left)} processes are left")
    assert len(left) <= 4, left
    assert run(jobs, Where())["max"] == "max"
    assert all(name == "schedd-main" or processes(group / name) for name in below(group)), below(group)
    say(f"a normal task afterwards: fine; groups: {below(group)}")
    jobs.close()


def bomb_goes_off(group: Path) -> None:
    jobs = scheduler()
    jobs.task(Bomb()).schedule()
    until(lambda: len(processes(group)) > 300, "it multiplies")
    jobs.close()


def leftovers_go(group: Path) -> None:
    jobs = scheduler()
    defuse(jobs)
    assert run(jobs, Where())["max"] == "max"
    jobs.close()


def limits_per_process() -> None:
    jobs = scheduler()
    assert run(jobs, Family(4)) == "all of them had their memory"
    say("without a delegated group: 800 MiB by grandchildren of a kind with 256 MiB, each below that alone")
    jobs.close()


def main() -> None:
    say(f"Linux {os.uname().release}; {(GROUPS / 'cgroup.controllers').read_text().strip()}")
    (GROUPS / "cgroup.subtree_control").write_text("+memory +pids")
    place = Path("/tmp/vm")
    place.mkdir()
    (place / "config.toml").write_text(CONFIG)
    os.chown(place, USER, USER)

    group = GROUPS / "by-hand.service"
    delegate(group, mark=False)
    daemon = Daemon(group)
    as_user(lambda: limits_hold(group, daemon))
    assert below(group)[-1].startswith("schedd-"), below(group)
    as_user(lambda: bomb_goes_off(group))
    before = len(processes(group))
    daemon.process.kill()
    daemon.process.wait()
    until(lambda: not processes(group), "nothing outlives a daemon that is killed")
    until(lambda: below(group) == ["schedd-main"], "its children's groups are removed")
    say(
        f"kill -9 of the daemon beside a fork bomb: of {before} processes none is left, and no group but {below(group)}"
    )

    delegated = GROUPS / "schedd.service"
    delegate(delegated, mark=True)
    subgroup = delegated / "main"
    delegate(subgroup, mark=False)
    daemon = Daemon(subgroup)
    as_user(lambda: limits_hold(delegated, daemon))
    say("the same with DelegateSubgroup=main")
    as_user(lambda: bomb_goes_off(delegated))
    (fork_server,) = (
        pid
        for pid in (subgroup / "cgroup.procs").read_text().split()
        if int(pid) != daemon.process.pid and b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    for pid in (int(fork_server), daemon.process.pid):
        os.kill(pid, signal.SIGSTOP)  # so that neither clears up
    for pid in (int(fork_server), daemon.process.pid):
        os.kill(pid, signal.SIGKILL)
    daemon.process.wait()
    left = len(processes(delegated))
    say(f"kill -9 of the daemon and of the one that forks: {left} processes are left in {below(delegated)}")
    assert left > 100, "so that there is something to remove"
    daemon = Daemon(subgroup)
    as_user(lambda: leftovers_go(delegated))
    until(lambda: len(processes(delegated)) <= 4, "the next daemon ends them")
    say(f"the next daemon has removed them: {len(processes(delegated))} processes, {below(delegated)}")
    daemon.end()
    until(lambda: not processes(delegated), "a daemon that ends leaves nothing")
    assert below(delegated) == ["main"], below(delegated)
    say("a daemon that is stopped leaves nothing behind")

    alien = GROUPS / "not-ours.service"
    alien.mkdir()
    daemon = Daemon(alien)
    as_user(limits_per_process)
    daemon.end()
    assert below(alien) == []
    print("VM: ALL FINE", flush=True)


if __name__ == "__main__":
    main()
