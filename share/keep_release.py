"""Keeps a release for the tests of the next one: its wheel, and a store that it has filled, in tests/releases.

    python share/keep_release.py dist/schedd-0.1.0-py3-none-any.whl [--name 0.1.0]

It replaces the release before. tests/faults/test_last_release.py upgrades from it, under load.
"""

from __future__ import annotations

import argparse
import io
import lzma
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

PLACE = Path(__file__).parents[1] / "tests" / "releases"
SMALLEST = 9 | lzma.PRESET_EXTREME


def main(arguments: Sequence[str]) -> None:
    """Write both files, and remove those of the release before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--name", help="of the files; by default the wheel's version")
    given = parser.parse_args(arguments)
    name = given.name or given.wheel.name.split("-")[1]
    wheel, store = packed(given.wheel.read_bytes()), filled(given.wheel)
    for old in PLACE.glob("*.xz"):
        old.unlink()
    for kind, content in (("whl", wheel), ("store", store)):
        path = PLACE / f"schedd-{name}.{kind}.xz"
        path.write_bytes(lzma.compress(content, preset=SMALLEST))
        print(f"{path}: {path.stat().st_size // 1024} KiB")


def packed(wheel: bytes) -> bytes:
    """The same wheel with its members as they are, which together become half as large."""
    stored = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as old, zipfile.ZipFile(stored, "w", zipfile.ZIP_STORED) as new:
        for member in sorted(old.infolist(), key=lambda member: (Path(member.filename).suffix, member.filename)):
            new.writestr(zipfile.ZipInfo(member.filename), old.read(member))
    return stored.getvalue()


def filled(wheel: Path) -> bytes:
    """What the wheel's own program exports of a store that it has filled (tests/releases/shop.py)."""
    with tempfile.TemporaryDirectory(prefix="schedd-keep-") as place, zipfile.ZipFile(wheel) as archive:
        archive.extractall(f"{place}/wheel")
        url = f"sqlite:///{place}/store.db"
        environ = {"PYTHONPATH": f"{place}/wheel", "SHOP_NOTES": f"{place}/notes", "SCHEDD_STORE__URL": url}
        export = "from scheduler.cli import main; main()"
        for words in ([str(PLACE / "shop.py"), "fill", url], ["-c", export, "db", "export", f"{place}/store.jsonl"]):
            subprocess.run([sys.executable, *words], cwd=place, env={**os.environ, **environ}, check=True)
        return Path(place, "store.jsonl").read_bytes()


if __name__ == "__main__":
    main(sys.argv[1:])
