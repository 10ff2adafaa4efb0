from django.test import TestCase, TransactionTestCase

from scheduler.django.testing import run_tasks
from shop.orders import place_order


class Placing(TestCase):
    def test_the_invoice_waits_for_a_worker(self):
        sending, _ = place_order("ann@example.com")
        sending.refresh()
        assert sending.status == "READY"


class Running(TransactionTestCase):
    def test_the_invoice_is_sent_and_then_counted(self):
        sending, counting = place_order("ann@example.com")
        assert run_tasks() == 2
        sending.refresh()
        counting.refresh()
        assert (sending.return_value, counting.return_value) == ("sent to ann@example.com", 1)
