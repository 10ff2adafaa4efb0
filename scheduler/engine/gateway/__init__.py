"""The worker of a job that has no database: it speaks to a daemon's gateway."""
