"""Real worker processes, real time: what is killed, stopped, starved and cut off here must lose nothing."""
