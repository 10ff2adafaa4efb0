"""What an engine does beside dispatch: lease, watchdog, registration, schedules, retention, stalls."""
