"""``schedctl service``: the unit that it makes, the commands that it gives, and that undoing leaves only the store.

No service manager runs here, so a stand-in takes its commands. systemd-analyze checks the units where it is installed.
"""

from __future__ import annotations

import plistlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scheduler.errors import ConfigError
from scheduler.operations import service, systemd
from scheduler.operations.service_manager import Machine, Whose, Wish
from support.runner import Runner

ANALYZE = shutil.which("systemd-analyze")


@dataclass
class Manager:
    """Takes the commands of a machine, and may refuse some."""

    users: set[str] = field(default_factory=set)
    given: list[str] = field(default_factory=list)
    refuses: str = "nothing"
    shown: str = ""

    def __call__(self, command: Sequence[str]) -> tuple[int, str]:
        text = " ".join(command)
        if command[0] == "id":
            return int(command[2] not in self.users), ""
        self.given.append(text)
        if self.refuses in text:
            return 1, "refused"
        if command[0] == "useradd":
            self.users.add(command[-1])
        if command[0] == "userdel":
            self.users.discard(command[-1])
        return 0, self.shown if "show" in text or "print" in text else ""


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def machine(tmp_path: Path, manager: Manager) -> Machine:
    root, program = tmp_path / "root", tmp_path / "opt" / "bin" / "schedd"
    (root / "run/systemd/system").mkdir(parents=True)
    (root / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return Machine(root, tmp_path / "home", 0, False, manager, program)


def everything(place: Path) -> dict[str, str]:
    return {
        str(file.relative_to(place)): file.read_text() if file.is_file() else "" for file in sorted(place.rglob("*"))
    }


def directives(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_unit_of_the_system_is_the_tree_s_own_but_for_its_program(machine: Machine) -> None:
    made = systemd.render(machine, Wish(Whose.SYSTEM), systemd.CONFIG, {})
    ours, own = directives(systemd.template("schedd.service")), directives(made)
    assert [line for line in own if line not in ours] == [f"ExecStart={machine.program} --config {systemd.CONFIG}"]
    assert len(own) == len(ours)


def test_install_and_uninstall_leave_what_was_there(machine: Machine, manager: Manager, tmp_path: Path) -> None:
    secret = tmp_path / "store.url"
    secret.write_text("postgresql+psycopg://schedd:secret@db/schedd")
    secret.chmod(0o600)
    before = everything(tmp_path)
    wish = Wish(Whose.SYSTEM, credentials=(("store.url", str(secret)),), drop_ins=("delegate",))
    service.install(machine, wish)
    unit = (machine.root / "etc/systemd/system/schedd.service").read_text()
    assert f"LoadCredential=store.url:{secret}\n" in unit
    assert "User=schedd\nGroup=schedd\n" in unit
    assert "secret@db" not in unit
    assert (machine.root / "etc/schedd/config.toml").read_text() == systemd.FIRST_CONFIG
    assert "Delegate=yes" in (machine.root / "etc/systemd/system/schedd.service.d/delegate.conf").read_text()
    assert [line.split()[0] for line in manager.given] == ["useradd", "systemctl", "systemctl", "systemctl"]
    assert manager.given[1:] == [
        *("systemctl daemon-reload", "systemctl enable schedd.service", "systemctl restart schedd.service")
    ]
    service.install(machine, wish)  # again: brought up to date, and what was made is still known
    told = service.uninstall(machine, Whose.SYSTEM)
    assert everything(tmp_path) == before
    assert manager.users == set()
    assert "systemctl disable --now schedd.service" in manager.given
    assert "the store" in told[-1]


def test_uninstall_leaves_what_others_made(machine: Machine, manager: Manager) -> None:
    manager.users.add("schedd")
    config = machine.place(systemd.CONFIG)
    config.parent.mkdir(parents=True)
    config.write_text("# mine\n")
    service.install(machine, Wish(Whose.SYSTEM))
    drop_in = machine.root / "etc/systemd/system/schedd.service.d/override.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nUMask=0027\n")
    service.uninstall(machine, Whose.SYSTEM)
    assert config.read_text() == "# mine\n"
    assert drop_in.exists()
    assert manager.users == {"schedd"}


def test_a_configuration_that_was_changed_stays(machine: Machine) -> None:
    service.install(machine, Wish(Whose.SYSTEM))
    machine.place(systemd.CONFIG).write_text("# changed\n")
    assert any("stays, since it was changed" in line for line in service.uninstall(machine, Whose.SYSTEM))
    assert machine.place(systemd.CONFIG).read_text() == "# changed\n"


@pytest.mark.parametrize("refused", ["useradd", "daemon-reload", "enable"])
def test_a_failure_leaves_nothing(machine: Machine, manager: Manager, tmp_path: Path, refused: str) -> None:
    before = everything(tmp_path)
    manager.refuses = refused
    with pytest.raises(ConfigError, match=rf"nothing is installed: .*{refused}.*refused"):
        service.install(machine, Wish(Whose.SYSTEM))
    assert everything(tmp_path) == before
    assert not manager.users


def test_a_service_that_does_not_start_is_said(machine: Machine, manager: Manager) -> None:
    manager.refuses = "restart"
    with pytest.raises(ConfigError, match="is installed, but does not start: refused; `journalctl -u schedd` says why"):
        service.install(machine, Wish(Whose.SYSTEM))
    assert service.installed(machine) == [Whose.SYSTEM]


def test_a_user_s_service_stands_where_its_configuration_is(machine: Machine, manager: Manager, tmp_path: Path) -> None:
    place = tmp_path / "my 100% project"
    place.mkdir()
    (place / "config.toml").touch()
    before = everything(machine.home)
    service.install(machine, Wish(Whose.USER, str(place / "config.toml")))
    unit = (machine.home / ".config/systemd/user/schedd.service").read_text()
    escaped = str(place).replace("%", "%%")
    assert f'ExecStart={machine.program} --config "{escaped}/config.toml"\n' in unit
    assert f"WorkingDirectory={escaped}\n" in unit
    assert "systemctl --user enable schedd.service" in manager.given
    assert not [line for line in manager.given if line.startswith("useradd")]
    service.uninstall(machine, Whose.USER)
    assert {name: text for name, text in everything(machine.home).items() if text} == before


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Wish(Whose.SYSTEM, "ROOT/home/me/config.toml"), "the configuration, .* sees nothing"),
        (Wish(Whose.SYSTEM, run_as="a b"), "not a user's name"),
        (Wish(Whose.SYSTEM, credentials=(("store.url", "/nowhere"),)), "there is no file /nowhere"),
        (Wish(Whose.SYSTEM, drop_ins=("no-namespaces",)), "has no drop-in no-namespaces"),
        (Wish(Whose.USER, "/a\nb/config.toml"), "cannot be named in a unit"),
    ],
)
def test_wishes_that_cannot_work_are_refused(
    machine: Machine, manager: Manager, tmp_path: Path, wish: Wish, said: str
) -> None:
    before = everything(tmp_path)
    if wish.config is not None:
        wish = wish._replace(config=wish.config.replace("ROOT", str(machine.root)))
    with pytest.raises(ConfigError, match=said):
        service.install(machine, wish)
    assert everything(tmp_path) == before
    assert manager.given == []


def test_a_foreign_unit_a_user_and_a_machine_without_systemd_are_refused(machine: Machine, tmp_path: Path) -> None:
    unit = machine.root / "etc/systemd/system/schedd.service"
    unit.write_text("[Service]\n")
    with pytest.raises(ConfigError, match="not of schedctl's making"):
        service.install(machine, Wish(Whose.SYSTEM))
    with pytest.raises(ConfigError, match="not of schedctl's making"):
        service.uninstall(machine, Whose.SYSTEM)
    assert unit.read_text() == "[Service]\n"
    unit.unlink()
    other = Machine(machine.root, machine.home, 1000, False, machine.run, machine.program)
    with pytest.raises(ConfigError, match="by root"):
        service.install(other, Wish(Whose.SYSTEM))
    (machine.root / "run/systemd/system").rmdir()
    with pytest.raises(ConfigError, match="systemd does not run here"):
        service.install(machine, Wish(Whose.USER))


def test_a_program_that_others_may_read_a_credential_of_is_refused(machine: Machine, tmp_path: Path) -> None:
    secret = tmp_path / "store.url"
    secret.touch(mode=0o644)
    with pytest.raises(ConfigError, match="others may read"):
        service.install(machine, Wish(Whose.USER, credentials=(("store.url", str(secret)),)))


def test_status_is_what_the_manager_says(machine: Machine, manager: Manager) -> None:
    assert service.status(machine, Whose.SYSTEM) is None
    service.install(machine, Wish(Whose.SYSTEM))
    manager.shown = "ActiveState=active\nSubState=running\nMainPID=12\nUnitFileState=enabled\nNRestarts=3\n"
    found = service.status(machine, Whose.SYSTEM)
    assert found is not None
    assert (found.state, found.pid, found.enabled, found.restarts) == ("active (running)", 12, "enabled", 3)
    assert found.active
    manager.shown = "ActiveState=failed\nSubState=failed\nMainPID=0\n"
    found = service.status(machine, Whose.SYSTEM)
    assert found is not None
    assert (found.state, found.pid, found.active) == ("failed (failed)", None, False)


def test_on_macos_launchd_gets_a_file(machine: Machine, manager: Manager) -> None:
    mac = Machine(machine.root, machine.home, 501, True, manager, machine.program)
    service.install(mac, Wish(Whose.USER, "/Users/me/shop/config.toml"))
    file = mac.home / "Library/LaunchAgents/schedd.plist"
    job = plistlib.loads(file.read_bytes())
    assert job["ProgramArguments"] == [str(mac.program), "--config", "/Users/me/shop/config.toml"]
    assert (job["WorkingDirectory"], job["KeepAlive"]) == ("/Users/me/shop", {"SuccessfulExit": False})
    assert job["ExitTimeOut"] > 40, "longer than [worker] drain"
    assert manager.given == [f"launchctl bootstrap gui/501 {file}"]
    manager.shown = "state = running\n\tpid = 7\n"
    found = service.status(mac, Whose.USER)
    assert found is not None
    assert (found.state, found.pid, found.active) == ("running", 7, True)
    service.uninstall(mac, Whose.USER)
    assert "launchctl bootout gui/501/schedd" in manager.given
    assert not file.exists()
    with pytest.raises(ConfigError, match="there is no user schedd"):
        service.plan(Machine(mac.root, mac.home, 0, True, manager, mac.program), Wish(Whose.SYSTEM))


def test_the_command_plans_without_doing(tmp_path: Path) -> None:
    from scheduler.cli.root import root

    (tmp_path / "config.toml").touch()
    given = ["--config", str(tmp_path / "config.toml"), "service", "install", "--user", "--dry-run"]
    done = Runner(env={"HOME": str(tmp_path)}).invoke(root, given)
    assert done.exit_code == 0, done.output
    assert "$ systemctl --user enable schedd.service" in done.stdout
    assert f"ExecStart={Machine().program} --config {tmp_path}/config.toml" in done.stdout
    assert not (tmp_path / ".config").exists()
    assert Runner(env={"HOME": str(tmp_path)}).invoke(root, ["service", "status", "--user"]).exit_code == 3
    assert Runner(env={"HOME": str(tmp_path)}).invoke(root, ["service", "uninstall", "--user"]).exit_code == 3
    assert Runner(env={"HOME": str(tmp_path)}).invoke(root, ["service", "install"]).exit_code == 2


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("whose", list(Whose))
def test_systemd_finds_nothing_in_the_units(machine: Machine, tmp_path: Path, whose: Whose) -> None:
    place = tmp_path / "a place"
    place.mkdir()
    config = place / "config.toml"
    config.touch()
    made = service.plan(machine, Wish(whose, None if whose is Whose.SYSTEM else str(config)))
    unit = tmp_path / "schedd.service"
    unit.write_text(made.files[service.unit_path(machine, whose)])
    environ = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    command = [str(ANALYZE), f"--{whose}", "--man=no", "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in (done.stdout + done.stderr).splitlines() if "schedd" in line] == []
