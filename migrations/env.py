"""Run by alembic, on the connection (or for the dialect) that ``scheduler.store.db.migrate`` hands over."""

from alembic import context

VERSION_TABLE = "schedd_version"
connection = context.config.attributes.get("connection")

if connection is None:
    context.configure(
        dialect_name=context.config.attributes["dialect"],
        version_table=VERSION_TABLE,
        literal_binds=True,
        output_buffer=context.config.output_buffer,
        transaction_per_migration=True,
    )
elif connection.in_transaction():
    # The caller's transaction spans everything: a migration that fails leaves nothing behind, on SQLite too.
    context.configure(connection=connection, version_table=VERSION_TABLE, transactional_ddl=True)
else:
    # PostgreSQL: each migration in a transaction of its own, and some statements outside of any (online.py).
    context.configure(connection=connection, version_table=VERSION_TABLE, transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
