"""Alerts: default rules over the store, evaluated by one of the fleet, and messages about them to sinks."""
