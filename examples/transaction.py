"""A task that is stored together with the program's own row, or not at all."""

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from scheduler import Context, Scheduler, Task, TaskId

URL = "sqlite:///accounts.db"


class Welcome(Task):
    name: str

    def run(self, ctx: Context) -> str:
        return f"Welcome {self.name}"


def sign_up(engine: sa.Engine, jobs: Scheduler, name: str) -> TaskId[str]:
    with engine.begin() as connection:  # a Session of SQLAlchemy's ORM will do as well
        connection.execute(sa.text("INSERT INTO accounts (name) VALUES (:name)"), {"name": name})
        return jobs.task(Welcome(name)).key(f"welcome-{name}").schedule(connection)


def main() -> None:
    engine = sa.create_engine(URL)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY)"))
        connection.execute(sa.text("DELETE FROM accounts"))
    jobs = Scheduler(URL)
    jobs.register(Welcome)
    with jobs:
        print(jobs.result(sign_up(engine, jobs, "alice"), timeout=10))
        try:
            sign_up(engine, jobs, "alice")
        except IntegrityError:
            print("the name is taken, so nothing was stored:", len(jobs.list_tasks(kind="Welcome")), "task")
    engine.dispose()


if __name__ == "__main__":
    main()
