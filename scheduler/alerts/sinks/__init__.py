"""Where messages of alerts go: one file for each type of sink."""
