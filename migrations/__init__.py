"""Alembic migrations, installed as scheduler.migrations."""
