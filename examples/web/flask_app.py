"""flask --app flask_app run, then: curl -X POST localhost:5000/orders/42, and curl localhost:5000/tasks/1"""

from flask import Flask, abort

from scheduler import Context, Scheduler, UnknownTaskError, task


@task
def ship(ctx: Context, order: int) -> str:
    return f"order {order} shipped"


jobs = Scheduler("sqlite:///shop.db")
jobs.register(ship)
app = Flask(__name__)


@app.post("/orders/<int:order>")
def place(order: int) -> dict[str, int]:
    return {"task": jobs.task(ship, order).schedule()}


@app.get("/tasks/<int:task_id>")
def show(task_id: int) -> dict[str, object]:
    try:
        task = jobs.get_task(task_id)
    except UnknownTaskError:
        abort(404)
    return {"state": task.state, "result": task.result}


if __name__ == "__main__":
    with jobs:  # runs tasks in this process, too
        app.run(use_reloader=False)
