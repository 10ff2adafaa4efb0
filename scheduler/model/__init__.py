"""The model: task types, specs, states, recurrence, retry and limits. Pure: no I/O, no SQL."""
