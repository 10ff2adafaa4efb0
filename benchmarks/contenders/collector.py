"""Python's garbage collector beside what takes a fraction of a second."""

import gc


def forget() -> None:
    """Let the collector look at nothing that is there already.

    It stays on. But once in a while it looks at everything, modules included, which takes as long as a fifth of a batch
    does, and whether that falls into one was chance.
    """
    gc.collect()
    gc.freeze()


def seldom() -> None:
    """Let it look at new objects as seldom as schedd's daemon does (``scheduler/interpreter.py``)."""
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, 5_000), *older)
