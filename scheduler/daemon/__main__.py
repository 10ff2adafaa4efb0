"""``python -m scheduler.daemon``: the daemon."""

import sys

from scheduler.daemon import run

if __name__ == "__main__":
    sys.exit(run())
