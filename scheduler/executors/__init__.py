"""Executors: tasks run as jobs of an engine elsewhere. Each job is a worker for exactly one claim."""
