"""Python's garbage collector beside what takes a fraction of a second: the same for all, as schedd's daemon has it.

It stays on. But once in a while it looks at everything, modules included, which takes as long as a fifth of a batch,
and whether that falls into one was chance.
"""

from scheduler.interpreter import collect_seldom as seldom
from scheduler.interpreter import freeze as forget

__all__ = ["forget", "seldom"]
