"""Makes a release and checks it: two builds of one digest, the tests on the installed wheel, a bill of materials.

    python share/release.py [--out dist] [--version 3.12 ...] [--tag v0.1.0]

Builds what the last commit holds, twice. The wheel is installed into a fresh virtual environment of each Python, and a
part of the tests runs there, in a directory without the sources. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("schedd", "scheduler", "tasks", "migrations", "build", "schedd.egg-info")  # which the tests must not find
# Of the tests that `make quick` runs, those that need nothing of the sources.
TESTS = (
    "client/test_builder.py",
    "engine/durable/test_steps.py",
    "model/test_recurrence.py",
    "store/tasks/test_keys.py",
)
VERSIONS = ("3.11", "3.12", "3.13")
LEAST_YEAR = 315_532_800  # 1980: a zip file knows no earlier time


def run(*words: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a program; its output. Raises SystemExit with what it said if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(str(word) for word in words[:6])} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def build(place: Path, epoch: int) -> dict[str, bytes]:
    """The sdist and the wheel of the last commit, by their names."""
    checkout = place / "checkout"
    checkout.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(checkout, filter="data")
    made = place / "made"
    run(sys.executable, "-m", "build", "--outdir", made, checkout, SOURCE_DATE_EPOCH=str(epoch))
    found = {file.name: file.read_bytes() for file in made.iterdir()}
    return {name: _settled(raw, epoch) if name.endswith(".tar.gz") else raw for name, raw in found.items()}


def _settled(raw: bytes, epoch: int) -> bytes:
    """The same archive without the times and users of this machine: setuptools keeps them in an sdist."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(raw)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=epoch, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def interpreter(version: str) -> str | None:
    """The path of a Python of this version that makes virtual environments, from PATH or from pyenv; None without."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")))]
    for path in filter(None, found):
        if subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0:
            return path
    return None


def check(python: str, wheel: Path, sdist: Path, place: Path) -> str:
    """Install the wheel into a new environment of this Python, and run tests there. What pytest says in the end."""
    inside = place / "venv" / "bin" / "python"
    run(python, "-m", "venv", place / "venv")
    run(inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[quick]")
    with tarfile.open(sdist) as files:
        files.extractall(place, filter="data")
    (unpacked,) = place.glob("schedd-*")
    for name in SOURCES:
        shutil.rmtree(unpacked / name, ignore_errors=True)
    where = run(inside, "-c", "import scheduler; print(scheduler.__file__)", cwd=unpacked).strip()
    if not where.startswith(str(place / "venv")):
        raise SystemExit(f"the tests would not test the wheel, but {where}")
    run(place / "venv" / "bin" / "schedctl", "--version", cwd=place)
    tests = [f"tests/{name}" for name in TESTS]
    said = run(inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--sqlite-only", *tests, cwd=unpacked)
    return said.strip().splitlines()[-1]


def materials(environment: Path, out: Path) -> None:
    """Write the bill of materials (CycloneDX) of the wheel with its extras, as they were installed."""
    run(
        *(sys.executable, "-m", "cyclonedx_py", "environment", environment / "bin" / "python"),
        *("--output-reproducible", "--of", "JSON", "-o", out),
    )


def main(arguments: Sequence[str]) -> None:
    """Build, compare, check, and say what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go")
    parser.add_argument("--version", action="append", help="a version of Python to test the wheel with, repeatable")
    parser.add_argument("--tag", help="the tag that it is made for, which must name the version")
    given = parser.parse_args(arguments)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if given.tag is not None and given.tag != f"v{project['version']}":
        raise SystemExit(f"the tag is {given.tag}, but the version in pyproject.toml is {project['version']}")
    if run("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT).strip():
        raise SystemExit("the checkout has changes: commit them first")
    epoch = max(LEAST_YEAR, int(run("git", "log", "-1", "--format=%ct", cwd=ROOT)))
    with tempfile.TemporaryDirectory(prefix="schedd-release-") as name:
        place = Path(name)
        first, second = (build(place / number, epoch) for number in ("first", "second"))
        for file in first:
            if first[file] != second.get(file):
                raise SystemExit(f"{file}: two builds of one commit differ")
        given.out.mkdir(parents=True, exist_ok=True)
        for file, content in first.items():
            (given.out / file).write_bytes(content)
            print(f"{hashlib.sha256(content).hexdigest()}  {file}  (two builds, the same)")
        (sdist,) = (given.out / file for file in first if file.endswith(".tar.gz"))
        (wheel,) = (given.out / file for file in first if file.endswith(".whl"))
        run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        print("twine check: passed")
        tested: list[Path] = []
        for version in given.version or VERSIONS:
            python = interpreter(version)
            if python is None:
                print(f"NOT tested: Python {version}, which is not there")
                continue
            tested.append(place / version)
            print(f"Python {version}, the wheel in a new environment: {check(python, wheel, sdist, place / version)}")
        if not tested:
            raise SystemExit("the wheel was tested with no Python")
        bill = given.out / f"{wheel.name.split('-py3')[0]}.cdx.json"
        materials(tested[0] / "venv", bill)
        parts = len(json.loads(bill.read_text(encoding="utf-8"))["components"])
        print(f"{bill.name}: {parts} components")


if __name__ == "__main__":
    main(sys.argv[1:])
