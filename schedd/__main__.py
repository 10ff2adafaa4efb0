"""``python -m schedd``: as ``python -m scheduler``."""

import sys

from schedd.commands import either

if __name__ == "__main__":
    sys.exit(either())
