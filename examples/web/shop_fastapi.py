"""uvicorn shop_fastapi:app, then: curl -X POST localhost:8000/orders/tea, and curl localhost:8000/orders/1"""

from fastapi import FastAPI
from shop_tasks import jobs, price

from scheduler.fastapi import Jobs, lifespan

app = FastAPI(lifespan=lifespan(jobs))


@app.post("/orders/{item}")
async def place(item: str, jobs: Jobs) -> dict[str, int]:
    return {"order": await jobs.task(price, item).schedule_async()}


@app.get("/orders/{order}")
async def show(order: int, jobs: Jobs) -> dict[str, object]:
    found = await jobs.get_task_async(order)
    return {"state": found.state, "result": found.result}
