"""Settings: their model, where they come from, how they are checked, and the task modules they name."""
