"""Floor 2b, the worker's side: claiming, running, reporting. Never imports the builder."""
