"""Messages in and out: what sources deliver becomes tasks, and what tasks publish goes to sinks."""
