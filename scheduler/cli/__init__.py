"""Floor 3: schedctl."""
