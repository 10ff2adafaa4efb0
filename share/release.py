"""Makes a release and checks it: two builds of one digest, the tests on the installed wheel, a bill of materials.

    python share/release.py [--out dist] [--version 3.12 ...] [--tag v0.1.0] [TEST ...]

Builds what the last commit holds, twice. The wheel is installed into a fresh virtual environment of each Python, and
the tests of ``make quick`` run there, in a directory without the sources. It looks at the changelog, at the way from
the release before, and at the forge's workflows. Nothing is uploaded: its last lines are the commands for a person.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OF_DEVELOPMENT = {"demo", "quick", "test", "dev", "docs", "release", "bench"}  # extras that no user needs
SOURCES = ("schedd", "scheduler", "tasks", "migrations", "build", "schedd.egg-info")  # which the tests must not find
VERSIONS = ("3.11", "3.12", "3.13")
STEP = "Changes with an upgrade step"
NO_STEP = "Changes without a step"
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
        umask=0o022,  # else the modes in a wheel are those of who builds it
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(str(word) for word in words[:6])} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def build(place: Path, epoch: int, **environment: str) -> dict[str, bytes]:
    """The sdist and the wheel of the last commit, by their names."""
    checkout = place / "checkout"
    checkout.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-c", "tar.umask=0022", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(checkout, filter="data")
    made = place / "made"
    run(sys.executable, "-m", "build", "--outdir", made, checkout, SOURCE_DATE_EPOCH=str(epoch), **environment)
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


def check(python: str, wheel: Path, sdist: Path, place: Path, tests: Sequence[str]) -> str:
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
    run(inside, "-m", "pip", "check", cwd=place)
    run(place / "venv" / "bin" / "schedctl", "doctor", "--install", cwd=place)
    jobs = str(len(os.sched_getaffinity(0)) * 2)
    said = run(
        *(inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", jobs, "--dist", "worksteal", "--sqlite-only"),
        *("-m", "not soak and not faults and not alone", *tests),
        cwd=unpacked,
    )
    return said.strip().splitlines()[-1]


def materials(project: dict[str, Any], wheel: Path, place: Path, out: Path) -> int:
    """Write the bill of materials (CycloneDX) of the wheel with each extra that users may want; its components."""
    extras = sorted(project["optional-dependencies"].keys() - OF_DEVELOPMENT)
    run(sys.executable, "-m", "venv", "--without-pip", place)
    inside = place / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", inside, "install", "--quiet", f"{wheel}[{','.join(extras)}]")
    run(
        *(sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", ROOT / "pyproject.toml"),
        *("--output-reproducible", "--of", "JSON", "-o", out, inside),
    )
    return len(json.loads(out.read_text(encoding="utf-8"))["components"])


def unnamed_steps(changelog: str, version: str) -> list[str]:
    """What is wrong with the changelog's part on a version: each change stands below one of two headings, and names its
    step below the first."""
    part = re.search(
        rf"^## \[(?:Unreleased\]: )?{re.escape(version)}\b.*?(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if part is None:
        return [f"no part on {version}"]
    wrong = []
    headings = re.split(r"^### (.+)$", part[0], flags=re.MULTILINE)
    if headings[1::2] != [STEP, NO_STEP]:
        wrong.append(f"the headings are {headings[1::2]}, not {[STEP, NO_STEP]}")
    if re.search(r"^- ", headings[0], re.MULTILINE):
        wrong.append("a change stands above the first heading")
    for heading, text in zip(headings[1::2], headings[2::2], strict=True):
        for change in re.split(r"^- ", text, flags=re.MULTILINE)[1:]:
            if (heading == STEP) != ("*Upgrade:*" in change):
                wrong.append(f"below {heading!r}: {change[:60].strip()}")
    return wrong


def last_release() -> tuple[str, int] | None:
    """The release that is kept for tests, and the number of its schema."""
    for path in sorted((ROOT / "tests" / "releases").glob("*.store.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            return path.name.removesuffix(".store.xz"), int(json.loads(next(lines))["schema"])
    return None


def rolls(changelog: str, version: str) -> str:
    """How a fleet comes from the release before to this one. Raises SystemExit if the changelog does not say so."""
    source = (ROOT / "scheduler" / "store" / "db" / "schema_version.py").read_text(encoding="utf-8")
    (head,) = re.findall(r'(?m)^HEAD = "(\d+)"', source)
    before = last_release()
    if before is None:
        return "no release before is kept in tests/releases"
    name, schema = before
    if int(head) <= schema + 1:
        return f"from {name} one worker after the other (schema {schema:04} to {head})"
    if "Stop all workers first" not in changelog.partition(NO_STEP)[0].partition(version)[2]:
        raise SystemExit(
            f"the schema goes from {schema:04} ({name}) to {head}, which workers of {name} do not know: say "
            f"'Stop all workers first' in CHANGELOG.md below {STEP!r}"
        )
    return f"from {name} with all workers stopped (schema {schema:04} to {head})"


def forge() -> None:
    """Check the forge's workflows by their schema, and by what is known to be unsafe in them."""
    run(Path(sys.executable).with_name("zizmor"), "--offline", "--no-progress", ROOT / ".github")
    for kind, pattern in (("github-workflows", "workflows/*.yml"), ("dependabot", "dependabot.yml")):
        files = sorted((ROOT / ".github").glob(pattern))
        run(Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", f"vendor.{kind}", *files)


LEFT = """
Left for a person with accounts. Once, before the first release:
  on the index: a trusted publisher for OWNER/schedd, workflow release.yml, environment release
  on the forge: an environment "release" with a required reviewer; private reporting of vulnerabilities; the names in
  .github/CODEOWNERS; a protected branch main, and protected tags v*
For each release:
  git tag --sign v{version} -m 'schedd {version}' && git push origin v{version}
  and approve the environment "release" of the workflow's run. It builds this again, and publishes what it built.
Afterwards:
  python -m pip download --no-deps --no-binary :none: schedd=={version} && sha256sum {wheel}
  gh attestation verify {wheel} --repo OWNER/schedd
  gh release create v{version} --verify-tag --notes-from-tag dist/*
  make keep-release, then commit tests/releases: the next release is upgraded from this one
Without the forge, which leaves out the attestation: python -m twine upload {out}/*.whl {out}/*.tar.gz"""


def main(arguments: Sequence[str]) -> None:
    """Build, compare, check, and say what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go")
    parser.add_argument("--version", action="append", help="a version of Python to test the wheel with, repeatable")
    parser.add_argument("--tag", help="the tag that it is made for, which must name the version")
    parser.add_argument("tests", nargs="*", help="files of tests, below the sources")
    given = parser.parse_args(arguments)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    if given.tag is not None and given.tag != f"v{version}":
        raise SystemExit(f"the tag is {given.tag}, but the version in pyproject.toml is {version}")
    if run("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT).strip():
        raise SystemExit("the checkout has changes: commit them first")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if wrong := unnamed_steps(changelog, version):
        raise SystemExit("CHANGELOG.md: " + "\n".join(wrong))
    print(f"changelog: each change of {version} names its upgrade step; {rolls(changelog, version)}")
    forge()
    print("workflows: check-jsonschema and zizmor passed")
    epoch = max(LEAST_YEAR, int(run("git", "log", "-1", "--format=%ct", cwd=ROOT)))
    with tempfile.TemporaryDirectory(prefix="schedd-release-") as name:
        place = Path(name)
        first = build(place / "first", epoch)
        os.umask(0o077)
        second = build(place / "second", epoch, TZ="Pacific/Auckland", LC_ALL="C")
        os.umask(0o022)
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
        bill = given.out / f"{wheel.name.split('-py3')[0]}.cdx.json"
        print(f"{bill.name}: {materials(project, wheel, place / 'materials', bill)} components")
        tested = 0
        for python_version in given.version or VERSIONS:
            python = interpreter(python_version)
            if python is None:
                print(f"NOT tested: Python {python_version}, which is not there")
                continue
            tested += 1
            said = check(python, wheel, sdist, place / python_version, given.tests)
            print(f"Python {python_version}, the wheel in a new environment: {said}", flush=True)
        if not tested:
            raise SystemExit("the wheel was tested with no Python")
    print(LEFT.format(version=version, wheel=wheel.name, out=given.out.name))


if __name__ == "__main__":
    main(sys.argv[1:])
