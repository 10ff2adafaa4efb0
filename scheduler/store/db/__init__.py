"""Connections, transactions, dialects, statements, the notifier, migrations, backup. Knows no table's meaning."""
