"""What differs between Linux, macOS and Windows, one file a subject. Other modules ask
them; ``sys.platform`` itself only where a checker of types has to see that code is not reached."""

from __future__ import annotations

import sys

LINUX = sys.platform == "linux"
MACOS = sys.platform == "darwin"
WINDOWS = sys.platform == "win32"
NEEDS_LINUX = "needs Linux: child processes are forked, watched and ended by what only its kernel has"
