"""Who takes part: each module has ``WORKS``, (work, dialect) -> function(url, size) -> rate or milliseconds."""
