"""uvicorn fastapi_app:app, then: curl -X POST localhost:8000/orders/42, and curl -N localhost:8000/tasks/1"""

from fastapi import FastAPI

from scheduler import Context, Scheduler, task
from scheduler.fastapi import Jobs, ProgressResponse, lifespan


@task
def ship(ctx: Context, order: int) -> str:
    ctx.report_progress(50, "packing")
    return f"order {order} shipped"


scheduler = Scheduler("sqlite:///shop.db")
scheduler.register(ship)
app = FastAPI(lifespan=lifespan(scheduler))


@app.post("/orders/{order}")
async def place(order: int, jobs: Jobs) -> dict[str, int]:
    return {"task": await jobs.task(ship, order).schedule_async()}


@app.get("/tasks/{task_id}")
async def watch(task_id: int, jobs: Jobs) -> ProgressResponse:
    return ProgressResponse(jobs, task_id)
