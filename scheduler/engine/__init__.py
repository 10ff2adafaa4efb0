"""The worker's side: claims tasks, runs handlers, records outcomes. Never imports the builder."""
