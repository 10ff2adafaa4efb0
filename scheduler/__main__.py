"""``python -m scheduler``: the daemon; ``python -m scheduler COMMAND``: ``schedctl COMMAND``."""

import sys

if __name__ == "__main__":
    from schedd.commands import either

    sys.exit(either())
