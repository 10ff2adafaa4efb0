"""Random histories of a small fleet, compared step by step with a model."""
