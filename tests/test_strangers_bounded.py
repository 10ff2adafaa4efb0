"""No process of ours waits for a stranger without a bound: calls that could, each with its time limit."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Calls that wait for another program, unless they are given a ``timeout``, and the place of that argument.
WAITING = {
    "subprocess.run": None,
    "subprocess.call": None,
    "subprocess.check_call": None,
    "subprocess.check_output": None,
    "urlopen": 2,
    "create_connection": 1,
    "HTTPConnection": 2,
    "HTTPSConnection": 2,
    "SMTP": 3,
    "SMTP_SSL": 5,
    "communicate": 1,
}
# Servers of the standard library and of uvicorn have no bound of their own: scheduler/connections.py is it.
SERVERS = {
    "ThreadingHTTPServer",
    "HTTPServer",
    "create_server",
    "start_server",
    "start_unix_server",
    "create_unix_server",
}
SERVERS |= {"uvicorn.run", "uvicorn.Server", "uvicorn.Config"}
ONE_PLACE = {"scheduler/connections.py", "scheduler/http_server.py"}


@functools.cache
def calls() -> list[tuple[str, int, str, ast.Call]]:
    return list(_calls())


def _calls() -> Iterator[tuple[str, int, str, ast.Call]]:
    for top in ("scheduler", "tasks"):
        for file in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    yield file.relative_to(ROOT).as_posix(), node.lineno, ast.unparse(node.func), node


def test_each_wait_for_another_program_has_a_limit() -> None:
    wrong = []
    for file, line, name, call in calls():
        for waiting, place in WAITING.items():
            if name != waiting and not name.endswith(f".{waiting}"):
                continue
            given = any(word.arg in ("timeout", None) for word in call.keywords)
            if not given and (place is None or len(call.args) <= place):
                wrong.append(f"{file}:{line}: {name} without a timeout")
    assert not wrong, "\n".join(wrong)


def test_each_server_is_the_bounded_one() -> None:
    wrong = [
        f"{file}:{line}: {name}"
        for file, line, name, _ in calls()
        if file not in ONE_PLACE and any(name == one or name.endswith(f".{one}") for one in SERVERS)
    ]
    assert not wrong, "\n".join(wrong)
