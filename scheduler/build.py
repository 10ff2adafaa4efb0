"""Which schedd this is: its version, and in a checkout the commit that is checked out."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_SHOWN = 9  # digits of a commit


@cache
def running() -> str:
    """``0.1.0``, in a checkout ``0.1.0+g95ff17c3a``: what this process was started from, as far as it was asked first.

    Git is not run, and nothing but its files read.
    """
    from scheduler import __version__

    commit = _commit(_ROOT)
    return __version__ if commit is None else f"{__version__}+g{commit[:_SHOWN]}"


def _commit(root: Path) -> str | None:
    """The commit that is checked out in this directory; None if it is no checkout."""
    try:
        if not (root / "pyproject.toml").is_file():
            return None
        place = root / ".git"
        if place.is_file():  # a work tree beside another one
            place = root / place.read_text().removeprefix("gitdir:").strip()
        head = (place / "HEAD").read_text().strip()
        name = head.removeprefix("ref:").strip()
        commit = head if name == head else _of_branch(place, name)
    except (OSError, ValueError):
        return None
    return commit if commit and all(digit in "0123456789abcdef" for digit in commit) else None


def _of_branch(place: Path, name: str) -> str | None:
    common = place / "commondir"
    shared = place / common.read_text().strip() if common.is_file() else place
    for directory in (place, shared):
        if (directory / name).is_file():
            return (directory / name).read_text().strip()
    packed = (shared / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
