from scheduler.django import task
from shop.models import Order


@task(retry=5, timeout=30)
def send_invoice(order_id):
    order = Order.objects.get(pk=order_id)
    order.sent = True
    order.save()
    return f"sent to {order.email}"


@task(priority=-50)
def count_sent():
    return Order.objects.filter(sent=True).count()
