"""Executors: tasks run as jobs of a backend elsewhere. Each job is a worker for one claim, or for queues."""
