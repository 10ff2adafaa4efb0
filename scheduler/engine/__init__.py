"""Floor 2b: the worker side."""
