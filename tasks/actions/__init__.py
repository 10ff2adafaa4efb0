"""Signed actions: made, delivered, verified and stored."""
