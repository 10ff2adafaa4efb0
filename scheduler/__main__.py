"""``python -m scheduler``: the daemon; ``python -m scheduler COMMAND``: ``schedctl COMMAND``."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] and not sys.argv[1].startswith("-"):
        from scheduler.cli import main

        main()
    from scheduler.daemon import run

    sys.exit(run())
