"""Run by alembic, on the connection (or for the dialect) that ``scheduler.store.db.migrate`` hands over."""

from alembic import context

VERSION_TABLE = "schedd_version"
given = context.config.attributes
connection = given.get("connection")
later = given.get("later")  # gets the statements that make indexes of full tables, once the transaction is over

if connection is None:
    context.configure(
        dialect_name=given["dialect"],
        version_table=VERSION_TABLE,
        literal_binds=True,
        output_buffer=context.config.output_buffer,
        later=later,
    )
else:
    # The caller's transaction spans everything: a migration that fails leaves nothing behind, on SQLite too.
    context.configure(connection=connection, version_table=VERSION_TABLE, transactional_ddl=True, later=later)
with context.begin_transaction():
    for statement in given.get("before", ()):
        context.execute(statement)
    context.run_migrations()
if connection is None:
    for statement in later or ():
        context.execute(statement)
