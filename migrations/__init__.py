"""Alembic migrations, installed as ``scheduler.migrations``. They never import the schema."""
