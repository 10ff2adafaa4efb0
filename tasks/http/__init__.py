"""HttpTask, and the HTTP client of the built-in types: its errors, its secrets, the addresses that it may reach."""
