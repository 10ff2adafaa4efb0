"""What one task's end means for others: release, cancel cascade, descendants, cycles, spawned tasks."""
