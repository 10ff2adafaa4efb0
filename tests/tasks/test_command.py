"""CommandTask, with real processes: what it runs, in what, and what cannot work."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler import PermanentError
from scheduler.model.fingerprint import fingerprint
from scheduler.tasks import CommandTask
from scheduler.tasks.command import task as command_task
from scheduler.tasks.command.process import MAX_LINE, MAX_TAIL, CommandFailed, CommandOutput, Process

from .commands import ALLOWED, descriptors, run, sh
from .fake import FakeContext

# Results


def test_success_gives_the_output() -> None:
    ctx = FakeContext(ALLOWED)
    result = run("printf", "%s\\n", "a b", "$HOME", ctx=ctx)
    assert result == {"exit_code": 0, "output_tail": "a b\n$HOME\n", "output_bytes": 10}
    assert ctx.captured == "a b\n$HOME\n"


def test_stdout_and_stderr_are_one_stream_in_order() -> None:
    ctx = FakeContext(ALLOWED)
    sh("echo 1; echo 2 >&2; echo 3; printf 4 >&2", ctx)
    assert ctx.captured == "1\n2\n3\n4\n"


def test_stdin_is_empty() -> None:
    assert run("cat")["output_tail"] == ""


def test_other_exit_codes_are_ordinary_failures() -> None:
    with pytest.raises(CommandFailed, match=r"^the shell command ended with exit code 3; its last words: oh no$"):
        sh("echo oh no; echo; exit 3")


def test_a_signal_is_named() -> None:
    with pytest.raises(CommandFailed, match=r"ended by signal 9 \(SIGKILL\)"):
        sh("kill -9 $$")


def test_permanent_exit_codes() -> None:
    with pytest.raises(PermanentError, match="exit code 65") as caught:
        sh("exit 65", permanent_exit_codes=[64, 65])
    assert caught.value.status == 65
    with pytest.raises(CommandFailed):
        sh("exit 66", permanent_exit_codes=[64, 65])


def test_undecodable_output_and_nul_are_replaced() -> None:
    assert sh(r"printf 'a\377b\000c'")["output_tail"] == "a\ufffdb\ufffdc"


def test_a_flood_is_bounded() -> None:
    result = sh("head -c 3000000 /dev/zero | tr '\\0' x; echo end")
    assert result["output_bytes"] == 3000004
    assert len(result["output_tail"]) == MAX_TAIL
    assert result["output_tail"].endswith("xxend\n")


def test_output_is_cut_into_lines() -> None:
    seen: list[str] = []
    output = CommandOutput(seen.append)
    for piece in (b"one\r", b"\ntw", b"o\nthr\xc3", b"\xa4e"):
        output.feed(piece)
    output.feed(b"x" * (MAX_LINE + 1))
    output.feed(b"last")
    output.close()
    assert seen == ["one\n", "two\n", "thr\u00e4e" + "x" * (MAX_LINE + 1) + "\n", "last\n"]
    assert output.tail == "x" * (MAX_TAIL - 4) + "last"
    assert output.last_line == "x" * 200


# What it runs in


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDD_STORE__URL", "postgresql://u:secret@db/x")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("KEPT", "yes")
    lines = run("env", env={"ADDED": "a=b\nc", "LC_ALL": "C"})["output_tail"].splitlines()
    assert {"KEPT=yes", "ADDED=a=b", "c", "SCHEDD_TASK_ID=42", "SCHEDD_TASK_ATTEMPT=1"} <= set(lines)
    assert not [line for line in lines if "secret" in line or "NOTIFY_SOCKET" in line]


def test_the_program_is_looked_for_in_its_own_path(tmp_path: Path) -> None:
    script = tmp_path / "my-tool"
    script.write_text("#!/bin/sh\necho found\n")
    script.chmod(0o755)
    assert run("my-tool", env={"PATH": str(tmp_path)})["output_tail"] == "found\n"


def test_nothing_is_inherited_but_the_streams() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        # ls opens the directory itself
        assert sh("ls /proc/self/fd | tr '\\n' ' '")["output_tail"] == "0 1 2 3 "
    finally:
        os.close(read)
        os.close(write)


def test_signals_are_as_a_command_expects_them() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        text = run("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")["output_tail"]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    standard = (1 << 31) - 1  # not the two that the C library keeps to itself
    assert [int(line.split()[1], 16) & standard for line in text.splitlines()] == [0, 0]


def test_working_directory(tmp_path: Path) -> None:
    assert run("pwd", "-P", cwd=str(tmp_path))["output_tail"] == f"{os.path.realpath(tmp_path)}\n"


def test_roots_confine_the_working_directory(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for directory in (inside, outside):
        directory.mkdir()
    (inside / "link").symlink_to(outside)
    settings = {"command": {"enabled": True, "roots": [str(inside)]}}
    for cwd in (None, str(inside)):
        assert run("pwd", "-P", cwd=cwd, ctx=FakeContext(settings))["output_tail"].strip().endswith("inside")
    for cwd in (outside, inside / "link", inside / ".." / "outside", tmp_path / "inside-too"):
        with pytest.raises(PermanentError, match=r"not allowed.*\[command\] roots|does not exist"):
            run("pwd", cwd=str(cwd), ctx=FakeContext(settings))


def test_a_working_directory_that_is_exchanged_for_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at it and the moment when the command is in it."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for directory in (inside / "deep" / "er", outside / "er"):
        directory.mkdir(parents=True)
    looked = command_task.directory_within

    def look(*args: Any) -> Any:
        found = looked(*args)
        (inside / "deep").rename(tmp_path / "away")
        (inside / "deep").symlink_to(outside)
        return found

    monkeypatch.setattr(command_task, "directory_within", look)
    settings = {"command": {"enabled": True, "roots": [str(inside)]}}
    with pytest.raises(PermanentError, match=r"working directory .*/deep/er' was exchanged for a link"):
        run("touch", "made", cwd=str(inside / "deep" / "er"), ctx=FakeContext(settings))
    assert not list(tmp_path.rglob("made"))


# What cannot work


@pytest.mark.parametrize("settings", [{}, {"command": {}}, {"command": {"enabled": False}}])
def test_off_unless_allowed(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"not allowed here.*enabled = true.*\[command\]"):
        run("touch", str(tmp_path / "made"), ctx=FakeContext(settings))
    assert not (tmp_path / "made").exists()


def test_what_cannot_be_started_is_permanent(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    (tmp_path / "garbage").write_bytes(b"\0\1\2")
    (tmp_path / "garbage").chmod(0o755)
    before = descriptors()
    for argv, text in (
        (["no-such-program-here"], "command not found: 'no-such-program-here'"),
        ([str(tmp_path / "plain")], "not executable"),
        ([str(tmp_path)], "not executable"),
        ([str(tmp_path / "garbage")], "no program for this machine"),
        (["echo", "x" * 200_000], "together too long"),
    ):
        with pytest.raises(PermanentError, match=text):
            run(*argv)
    with pytest.raises(PermanentError, match=r"working directory .* does not exist"):
        run("true", cwd=str(tmp_path / "nowhere"))
    assert descriptors() <= before


def test_a_working_directory_that_vanishes_at_the_last_moment(tmp_path: Path) -> None:
    def start() -> None:
        with Process(["true"], {}, str(tmp_path / "gone"), 1.0, lambda data: None) as process:
            while process.pump(1):
                pass

    with pytest.raises(PermanentError, match=r"working directory .*gone' does not exist"):
        start()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"argv": []}, "argv|length"),
        ({"argv": [""]}, "argv"),
        ({"argv": ["a", "b"], "shell": True}, "shell"),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"argv": ["a"], "env": {"A=B": "c"}}, "environment"),
        ({"argv": ["a"], "cwd": "relative"}, "absolute"),
        ({"argv": ["a"], "timeout": 0}, "timeout|> 0"),
        ({"argv": ["a"], "grace": -1}, "grace|>= 0"),
        ({"argv": ["a"], "permanent_exit_codes": [0]}, "permanent_exit_codes|>= 1"),
        ({"argv": ["a"], "nonsense": 1}, "nonsense|unexpected"),
    ],
)
def test_bad_fields_are_refused_when_built(fields: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        CommandTask(**fields)
    with pytest.raises(msgspec.ValidationError, match=text):
        msgspec.convert(fields, CommandTask)


def test_secrets_stay_out_of_errors_and_log() -> None:
    ctx = FakeContext(ALLOWED)
    with pytest.raises(CommandFailed) as caught:
        run("false", "--password=hunter2", env={"TOKEN": "hunter2"}, ctx=ctx)
    assert "hunter2" not in str(caught.value) + ctx.captured


def test_what_runs_for_what_tells_causes_apart() -> None:
    """Ten lines of a crontab are ten causes, though each fails in the same place of the code."""

    def cause(program: str, code: int, *, schedule: str | None = None, key: str | None = None) -> str:
        ctx = FakeContext(ALLOWED)
        ctx.schedule, ctx.key = schedule, key
        with pytest.raises(CommandFailed) as raised:
            run(program, "-c", f"exit {code}", ctx=ctx)
        return fingerprint(raised.value)

    usual = cause("/bin/sh", 1)
    assert cause("/bin/sh", 1) == usual
    others = [cause("/bin/bash", 1), cause("/bin/sh", 2)]
    others += [cause("/bin/sh", 1, schedule="a"), cause("/bin/sh", 1, key="b")]
    assert len({usual, *others}) == 5
