from django.db import transaction

from shop.models import Order
from shop.tasks import count_sent, send_invoice


@transaction.atomic  # the order and its two tasks, or none of them
def place_order(email):
    order = Order.objects.create(email=email)
    sending = send_invoice.using(key=f"invoice-{order.pk}").enqueue(order.pk)
    counting = count_sent.using(depends_on=[sending]).enqueue()
    return sending, counting
