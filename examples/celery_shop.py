"""A program for Celery, on schedd: its imports, its broker and the line with setup are all that is new."""

from scheduler.celery import Celery, Task, chord, crontab

app = Celery("celery_shop", broker="sqlite:///shop.db")
app.conf.beat_schedule = {
    "nightly": {"task": "celery_shop.price", "schedule": crontab(minute=0, hour=2), "args": ("tea",)},
}


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=True, max_retries=5)
def price(self: Task, item: str) -> int:
    if self.request.retries == 0 and item == "bread":
        raise self.retry(countdown=0)
    return len(item)


@app.task
def total(prices: list[int], discount: int = 0) -> int:
    return sum(prices) - discount


@app.task
def receipt(amount: int, currency: str) -> str:
    return f"{amount} {currency}"


setup = app.setup  # a daemon with this module fires beat_schedule, too


def main() -> None:
    with app:  # runs tasks and fires schedules in this program, as celery worker -B does
        print(price.delay("milk").get(timeout=10))
        order = chord(price.s(item) for item in ("tea", "bread"))(total.s(discount=1))
        print(order.get(timeout=10))
        print((price.s("cheese") | receipt.s("EUR")).delay().get(timeout=10))


if __name__ == "__main__":
    main()
