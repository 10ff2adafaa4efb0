"""Money from one account to another, in one commit with the task's success: once, whatever dies in between."""

import sqlalchemy as sa

from scheduler import Context, RetryPolicy, Task

MOVE = sa.text("UPDATE accounts SET balance = balance + :amount WHERE id = :id")


class Transfer(Task, retry=RetryPolicy(min_wait=1, max_attempts=5)):
    source: int
    target: int
    amount: int

    def run(self, ctx: Context) -> None:
        with ctx.transaction() as tx:
            for account, amount in sorted([(self.source, -self.amount), (self.target, self.amount)]):
                tx.execute(MOVE, {"id": account, "amount": amount})
            tx.result = {"moved": self.amount}
