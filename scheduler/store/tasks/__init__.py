"""The row's life: enqueue, keys, replace, claim, complete, limits, control, deadlines, stalls."""
