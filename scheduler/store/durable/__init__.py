"""Checkpoints, waits, events, await cycles."""
