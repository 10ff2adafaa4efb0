"""What the page on Flask says: the request's own transaction, a handler with the app."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from flask import Flask, abort, current_app
from sqlalchemy.orm import scoped_session, sessionmaker

from scheduler import Context, Scheduler, task
from scheduler.testing import drain
from support.databases import Database

pytestmark = pytest.mark.both_databases
ORDERS = sa.Table("orders", sa.MetaData(), sa.Column("item", sa.Text))


@task
def ship(ctx: Context[Flask], item: str) -> str:
    with ctx.state.app_context():
        return f"{item} from {current_app.config['SHOP']}"


@pytest.fixture
def app(database: Database) -> Iterator[Flask]:
    made = Flask("shop")
    made.config["SHOP"] = "the shop"
    jobs = Scheduler.for_testing(url=database.url, state=made)
    jobs.register(ship)
    engine = sa.create_engine(database.url)
    ORDERS.metadata.create_all(engine)
    session = scoped_session(sessionmaker(engine))  # as Flask-SQLAlchemy's db.session
    made.teardown_appcontext(lambda _: session.remove())
    made.extensions["jobs"] = jobs

    @made.post("/<item>")
    def order(item: str) -> dict[str, int]:
        session.execute(ORDERS.insert().values(item=item))
        shipping = jobs.task(ship, item).schedule(connection=session)
        if item == "nothing":
            abort(422)
        session.commit()
        return {"task": shipping}

    yield made
    jobs.close()
    engine.dispose()


def test_a_task_commits_with_the_rows_of_its_request(app: Flask) -> None:
    jobs = app.extensions["jobs"]
    client = app.test_client()
    stored = client.post("/cup").get_json()["task"]
    assert client.post("/nothing").status_code == 422
    assert [one.id for one in jobs.list_tasks()] == [stored]
    assert drain(jobs, raise_errors=True) == 1
    assert jobs.result(stored, timeout=0) == "cup from the shop"
