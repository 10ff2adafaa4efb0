"""The console's sessions on a PostgreSQL server can be told from those of workers."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from support.consoles import ask, link, served
from support.databases import Database


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_the_server_lists_them_by_their_name(database: Database) -> None:
    with served(database) as server:
        opened = ask(server.gate, "GET", f"/?{link(server).partition('?')[2]}")
        cookie = {"cookie": opened.cookies[0].partition(";")[0]}
        for path in ("/", "/tasks", "/workers", "/dead", "/forecast"):
            assert ask(server.gate, "GET", path, headers=cookie).status == 200
        engine = sa.create_engine(database.url)
        with engine.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT application_name, count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND backend_type = 'client backend' AND pid <> pg_backend_pid() GROUP BY 1"
            ).fetchall()
        engine.dispose()
    names = dict(map(tuple, rows))
    assert 1 <= names.get("schedd-console", 0) <= 5, names
