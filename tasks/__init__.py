"""Built-in task types, installed as scheduler.tasks."""
