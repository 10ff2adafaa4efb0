"""How a process that runs tasks for long sets up its Python interpreter: what the daemon does, and an embedding program
may do.

    from scheduler import interpreter

    interpreter.tune()
    ...  # import, connect, load models
    interpreter.freeze()
    jobs.start()
"""

from __future__ import annotations

import gc
import sys

# The engine's loop gives up the GIL at each call of the database; with busy handlers it then waits this long
# to get it back, each time. At 1 ms it took twice as many turns beside four busy threads as at Python's 5 ms,
# which got no less done.
SWITCH_INTERVAL = 0.001  # seconds
# New objects after which the collector looks at them: 700, Python's default before 3.13, is fewer than the tasks of
# two turns consist of, none of which it could ever free. A few times as many cost nothing but that cycles live longer.
YOUNG = 5_000


def tune() -> None:
    """Switch between threads, and collect garbage, as suits an engine.

    Before the program's own imports, so that what these set wins. A collector that is set to look less often stays so.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    collect_seldom()


def collect_seldom() -> None:
    """The collector's part of :func:`tune`."""
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG:  # 0: it does not look by itself at all
        gc.set_threshold(YOUNG, *older)


def freeze() -> None:
    """Collect garbage, then have the collector never look at what is there now.

    Once everything is imported and set up: the collector then looks at all of it no more, which stops every thread for
    some 30 ms for each 100,000 objects, and children that are forked do not copy it.
    """
    gc.collect()
    gc.freeze()
