"""Executors: tasks run as jobs of an engine elsewhere. Each job is a worker for one claim, or for queues."""
