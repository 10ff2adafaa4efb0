"""flask --app shop_flask run, then: curl -X POST localhost:5000/orders/tea, and curl localhost:5000/orders/1"""

from flask import Flask
from shop_tasks import jobs, price

app = Flask(__name__)


@app.post("/orders/<item>")
def place(item: str) -> dict[str, int]:
    return {"order": jobs.task(price, item).schedule()}


@app.get("/orders/<int:order>")
def show(order: int) -> dict[str, object]:
    found = jobs.get_task(order)
    return {"state": found.state, "result": found.result}
