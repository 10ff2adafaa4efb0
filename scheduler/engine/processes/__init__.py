"""The engine's side of child processes: pool, queue, monitor, timeouts, handles."""
