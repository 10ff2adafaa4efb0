"""schedd: a durable task scheduler for one machine or a few."""
