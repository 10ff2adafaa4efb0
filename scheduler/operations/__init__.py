"""What people and programs do with a store, each verb once: ``schedctl``, the Scheduler and the pages all call it here.

An operation is a function of a :class:`~scheduler.operations.desk.Desk` and plain arguments. It checks them, opens its
transaction, changes, has the audit record it, and wakes the workers. Its result says everything that a door may tell:
what changed, what did not and why, what is left.
"""
