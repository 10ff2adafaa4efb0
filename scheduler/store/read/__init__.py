"""Everything that only reads for people: tasks, graph, history, workers, status, explain, dead letters."""
