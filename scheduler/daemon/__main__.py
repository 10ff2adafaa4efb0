"""``python -m scheduler.daemon``: the daemon."""

import sys

from scheduler.daemon.main import main

if __name__ == "__main__":
    sys.exit(main())
