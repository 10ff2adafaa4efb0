"""Retention, purge, replay, doctor and repair."""
