"""Transports: where messages come from (sources) and go to (sinks). What all of them share is in ``ports``."""
