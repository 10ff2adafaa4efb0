"""Floor 0: pure rules. No I/O, no SQL."""
