"""What differs between Linux, macOS and Windows, one file a subject. Nothing else asks on which of them it runs."""

from __future__ import annotations

import sys

LINUX = sys.platform == "linux"
WINDOWS = sys.platform == "win32"
NEEDS_LINUX = "needs Linux: child processes are forked, watched and ended by what only its kernel has"
