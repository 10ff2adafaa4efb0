"""``python -m schedd``: as ``python -m scheduler``."""

import sys

from schedd.commands import control, daemon

if __name__ == "__main__":
    if sys.argv[1:2] and not sys.argv[1].startswith("-"):
        control()
    sys.exit(daemon())
