"""A shop whose orders and tasks commit together, with the console behind its own log-in."""

import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from scheduler import Context, Scheduler, UnknownTaskError, console, task
from scheduler.console.roles import Principal
from scheduler.fastapi import Background, Jobs, lifespan

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
TOKEN = os.environ.get("SHOP_TOKEN", secrets.token_hex(16))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


@task
def ship(ctx: Context, order: int) -> str:
    return f"order {order} shipped"


@task
def send_mail(ctx: Context, to: str, text: str) -> str:
    return f"to {to}: {text}"


scheduler = Scheduler(URL)
scheduler.register(ship)
scheduler.register(send_mail)
engine = create_engine(URL)
Base.metadata.create_all(engine)
async_engine = create_async_engine(URL.replace("sqlite:", "sqlite+aiosqlite:"))


def session() -> Iterator[Session]:
    with Session(engine) as made:
        yield made


async def async_session() -> AsyncIterator[AsyncSession]:
    async with AsyncSession(async_engine, expire_on_commit=False) as made:
        yield made


def who(scope: Mapping[str, Any]) -> Principal | None:
    """The console asks the program who it is: here by a bearer token, in yours by its session."""
    given = dict(scope["headers"]).get(b"authorization", b"")
    right = secrets.compare_digest(given, f"Bearer {TOKEN}".encode())
    return console.principal("shopkeeper", "operator") if right else None


pages = console.app(scheduler, who)
app = FastAPI(lifespan=lifespan(scheduler, console=pages))
app.mount("/jobs", pages)


@app.post("/orders")
def order(item: str, jobs: Jobs, session: Annotated[Session, Depends(session)]) -> dict[str, int]:
    row = Order(item=item)
    session.add(row)
    session.flush()
    shipping = jobs.task(ship, row.id).schedule(connection=session)
    if item == "nothing":
        raise HTTPException(422)  # neither the order nor its task is stored
    session.commit()
    return {"order": row.id, "task": shipping}


@app.post("/async-orders")
async def order_async(
    item: str, jobs: Jobs, session: Annotated[AsyncSession, Depends(async_session)]
) -> dict[str, int]:
    row = Order(item=item)
    session.add(row)
    await session.flush()
    shipping = await jobs.task(ship, row.id).schedule_async(connection=session)
    if item == "nothing":
        raise HTTPException(422)
    await session.commit()
    return {"order": row.id, "task": shipping}


@app.post("/mails")
def mail(to: str, background: Background) -> dict[str, int]:
    return {"task": background.add_task(send_mail, to, text="hello")}


@app.get("/results/{task_id}")
async def result(task_id: int, jobs: Jobs) -> str:
    try:
        found: str = await jobs.result_async(task_id, timeout=30)
    except UnknownTaskError as error:
        raise HTTPException(404, str(error)) from None
    return found
