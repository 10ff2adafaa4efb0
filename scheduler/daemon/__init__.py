"""The schedd process: entry point, supervisor, signals, logs, systemd notification."""
